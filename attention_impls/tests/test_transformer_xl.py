"""Transformer-XL's positions: the definition by a loop, the shift, and what must reduce to softmax."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.biased import shifted
from attention_impls.mask import Mask
from attention_impls.tests.position_loops import weights_by_position
from attention_impls.tests.score_loops import out_by_loop
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.positional.transformer_xl import TRANSFORMER_XL
from attention_impls.variants.scores.softmax import SOFTMAX

KERNELS = tuple(f"transformer_xl.{kernel}" for kernel in ("naive", "tiled", "tiled:block-2", "tiled:block-1"))
CALLS = [
    {"mask": "full"},
    {"kv_heads": 2, "value_dim": 6},
    {"q_len": 3, "mask": "causal:bottom_right"},  # four keys of a memory
    {"q_len": 9, "kv_len": 4, "mask": "full"},
]


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, axes: dict) -> None:
    call = drawn(TRANSFORMER_XL, **axes)
    u, w, w_r = (call.parameters[n].numpy() for n in ("content_bias", "position_bias", "w_r"))
    width = 16  # 4 heads of 4

    def logit(h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        angles = [(i - j) / 10000 ** (2 * m / width) for m in range(width // 2)]
        r = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        projected = [sum(w_r[h, m, d] * r[m] for m in range(width)) for d in range(4)]
        return (sum((q + u[h]) * k) + sum((q + w[h]) * projected)) / 2.0

    expected = out_by_loop(call, weights_by_position(call, logit))
    torch.testing.assert_close(definition(TRANSFORMER_XL, call), expected)
    torch.testing.assert_close(run(name, call), expected)


def test_a_shift_reads_every_pair_at_its_own_distance() -> None:
    """Three rows over two keys: row r holds distances 4, 3, … in order; pair (r, c) is at distance 2 + r − c."""
    by_distance = torch.tensor([4, 3, 2, 1, 0]).expand(3, 5)
    assert shifted(by_distance, 2).tolist() == [[2, 1], [3, 2], [4, 3]]


@pytest.mark.parametrize("name", KERNELS)
def test_without_biases_and_projection_it_is_softmax(name: str) -> None:
    call = drawn(TRANSFORMER_XL, mask="full")
    nothing = {n: torch.zeros_like(p) for n, p in call.parameters.items() if n != "position_bias"}
    torch.testing.assert_close(run(name, with_parameters(call, **nothing)), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", KERNELS)
def test_moving_all_positions_changes_nothing(name: str) -> None:
    call = drawn(TRANSFORMER_XL)
    moved = replace(call, mask=replace(call.mask, q_start=500, k_start=500))
    torch.testing.assert_close(run(name, moved), run(name, call))


@pytest.mark.parametrize("name", KERNELS)
def test_tokens_with_positions_of_their_own_get_what_each_would_get_alone(name: str) -> None:
    call = drawn(TRANSFORMER_XL, mask="full")
    starts = torch.tensor([[3, 0, -2, 9, 1, 0, 4], [0, 1, 5, -3, 2, 2, 0]])
    together = run(name, replace(call, mask=Mask(7, 7, q_start=starts)))
    for b, r in np.ndindex(2, 7):
        alone = call.batch(b).rows(r, r + 1)
        alone = replace(alone, mask=Mask(1, 7, q_start=int(starts[b, r]) + r))
        torch.testing.assert_close(together[b : b + 1, :, r : r + 1], run(name, alone))


@pytest.mark.parametrize("name", KERNELS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(TRANSFORMER_XL), 4)
