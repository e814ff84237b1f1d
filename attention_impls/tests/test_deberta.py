"""DeBERTa's three terms by a loop, each alone, and what they reduce to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.position_loops import weights_by_position
from attention_impls.tests.score_loops import out_by_loop
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.scores.softmax import SOFTMAX

KERNELS = tuple(f"deberta:span-3.{kernel}" for kernel in ("naive", "tiled", "tiled:block-2"))
DEBERTA = catalogue.find(KERNELS[0]).variant
CALLS = [
    {"mask": "full"},
    {"kv_heads": 2, "value_dim": 6, "q_len": 5},
    {"q_len": 3, "mask": "causal:bottom_right"},
    {"mask": "padded:0.3"},
]


def delta(i: int, j: int) -> int:
    """The paper's three cases, for a span of 3."""
    if i - j <= -3:
        return 0
    return 5 if i - j >= 3 else i - j + 3


@pytest.mark.parametrize("terms", ["both", "rel_keys", "rel_queries"])
@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, axes: dict, terms: str) -> None:
    call = drawn(DEBERTA, **axes)
    off = {n: torch.zeros_like(p) for n, p in call.parameters.items() if terms not in ("both", n)}
    call = with_parameters(call, **off)
    keys, queries = (call.parameters[n].numpy() for n in ("rel_keys", "rel_queries"))

    def logit(h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        content, to_position = sum(q * k), sum(q * keys[h, delta(i, j)])
        return (content + to_position + sum(k * queries[h, delta(j, i)])) / math.sqrt(3 * 4)

    expected = out_by_loop(call, weights_by_position(call, logit))
    torch.testing.assert_close(definition(DEBERTA, call), expected)
    torch.testing.assert_close(run(name, call), expected)


@pytest.mark.parametrize("name", KERNELS)
def test_tables_of_zeros_are_softmax_at_its_scale(name: str) -> None:
    call = drawn(DEBERTA, mask="full")
    flat = with_parameters(call, **{n: torch.zeros_like(p) for n, p in call.parameters.items()})
    torch.testing.assert_close(run(name, flat), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", KERNELS)
def test_moving_all_positions_changes_nothing(name: str) -> None:
    call = drawn(DEBERTA)
    moved = replace(call, mask=replace(call.mask, q_start=50, k_start=50))
    torch.testing.assert_close(run(name, moved), run(name, call))


@pytest.mark.parametrize("name", KERNELS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(DEBERTA), 4)
