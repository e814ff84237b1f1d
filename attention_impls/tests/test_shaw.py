"""Shaw's relative keys and values: the definition by a loop, the clip, and what must reduce to softmax."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import merge_by_lse
from attention_impls.tests.position_loops import weights_by_position
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    with_parameters,
)
from attention_impls.variants.scores.softmax import SOFTMAX

KERNELS = tuple(f"shaw:clip-2.{kernel}" for kernel in ("naive", "gather", "blocks", "blocks:block-2"))
SHAW = catalogue.find(KERNELS[0]).variant
CALLS = [
    {"mask": "full"},
    {"kv_heads": 2, "value_dim": 6},
    {"q_len": 3, "mask": "causal:bottom_right"},
    {"mask": "padded:0.3+causal"},
    {"q_len": 9, "kv_len": 4, "mask": "causal:bottom_right"},  # five queries see no key
]


def clipped(i: int, j: int) -> int:
    return {-2: 0, -1: 1, 0: 2, 1: 3, 2: 4}[max(-2, min(2, j - i))]


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, axes: dict) -> None:
    call = drawn(SHAW, **axes)
    keys, values = (call.parameters[n].numpy() for n in ("rel_keys", "rel_values"))

    def logit(h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        return sum(q * (k + keys[clipped(i, j)])) / 2.0

    weights = weights_by_position(call, logit)
    v, expected = call.v.numpy(), np.zeros((*weights.shape[:3], call.v.shape[3]))
    for b, h, r, j in np.ndindex(*weights.shape):
        value = v[b, h * v.shape[1] // 4, j] + values[clipped(call.mask.q_start + r, j)]
        expected[b, h, r] += weights[b, h, r, j] * value
    torch.testing.assert_close(definition(SHAW, call), torch.from_numpy(expected))
    torch.testing.assert_close(run(name, call), torch.from_numpy(expected))


@pytest.mark.parametrize("name", KERNELS)
def test_vectors_of_zeros_are_softmax(name: str) -> None:
    call = drawn(SHAW, mask="full")
    none = torch.zeros(5, 4).double()
    torch.testing.assert_close(
        run(name, with_parameters(call, rel_keys=none, rel_values=none)), definition(SOFTMAX, call)
    )


@pytest.mark.parametrize("name", KERNELS)
def test_the_same_vector_at_every_distance_moves_no_weight_and_adds_itself_to_values(name: str) -> None:
    call = drawn(SHAW, mask="full")
    same = {n: p[:1].expand(5, 4) for n, p in call.parameters.items()}
    expected = definition(SOFTMAX, call) + same["rel_values"][0]
    torch.testing.assert_close(run(name, with_parameters(call, **same)), expected)


@pytest.mark.parametrize("name", KERNELS)
def test_moving_all_positions_changes_nothing(name: str) -> None:
    call = drawn(SHAW)
    moved = replace(call, mask=replace(call.mask, q_start=50, k_start=50))
    torch.testing.assert_close(run(name, moved), run(name, call))


@pytest.mark.parametrize("name", KERNELS)
def test_two_halves_of_the_keys_join_to_the_whole(name: str) -> None:
    call, made = drawn(SHAW, mask="full"), implementation(name)
    parts = [made.prepare(part, True)(part) for part in (call.keys(0, 3), call.keys(3, 7))]
    torch.testing.assert_close(merge_by_lse([p.out for p in parts], [p.lse for p in parts])[0], run(name, call))


@pytest.mark.parametrize("name", KERNELS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(SHAW), 4)
