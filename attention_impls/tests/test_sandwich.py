"""Sandwich: the inner product of whole sinusoids by a loop, attn-gym's form, and what it reduces to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.mask import Mask
from attention_impls.tests.position_loops import weights_by_position
from attention_impls.tests.score_loops import out_by_loop
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.positional.sandwich import ratios
from attention_impls.variants.scores.softmax import SOFTMAX

KERNELS = tuple(f"sandwich:width-6.{kernel}" for kernel in ("naive", "tiled", "tiled:block-2"))
SANDWICH = catalogue.find(KERNELS[0]).variant
CALLS = [{"mask": "full"}, {"kv_heads": 2}, {"q_len": 3, "mask": "causal:bottom_right"}]


def sinusoid(t: int) -> list[float]:
    angles = [t / 10000 ** (2 * m / 6) for m in range(3)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def test_the_ratios_of_four_heads_are_the_papers() -> None:
    assert ratios(4).tolist() == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_form_agrees_with_inner_products_of_whole_sinusoids(name: str, axes: dict) -> None:
    call = drawn(SANDWICH, **axes)

    def logit(h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        similar = sum(a * b for a, b in zip(sinusoid(i), sinusoid(j), strict=True))
        return sum(q * k) / 2.0 + similar / (2.0 * (h + 1))

    expected = out_by_loop(call, weights_by_position(call, logit))
    torch.testing.assert_close(definition(SANDWICH, call), expected)
    torch.testing.assert_close(run(name, call), expected)


@pytest.mark.parametrize("kernel", ["naive", "tiled"])
def test_it_agrees_with_attn_gym(kernel: str) -> None:
    mods = pytest.importorskip("attn_gym.mods.sandwich")
    variant = catalogue.find("sandwich.naive").variant
    call = drawn(variant)
    bias = mods.generate_sandwich_bias(4, 7)
    h, i, j = torch.arange(4).view(4, 1, 1), torch.arange(7).view(7, 1), torch.arange(7)
    scores = bias(call.q @ call.k.mT / 2.0, None, h, i, j)  # float32 inside
    weights = scores.masked_fill(j > i, -math.inf).softmax(-1)
    torch.testing.assert_close(run(f"sandwich.{kernel}", call), weights @ call.v, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_a_ratio_without_end_is_softmax(name: str) -> None:
    call = drawn(SANDWICH, mask="full")
    flat = with_parameters(call, ratio=torch.full((4,), 1e30).double())
    torch.testing.assert_close(run(name, flat), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", KERNELS)
def test_tokens_with_positions_of_their_own_get_what_each_would_get_alone(name: str) -> None:
    """The only case in which the bias is not laid out by a shift."""
    call = drawn(SANDWICH, mask="full")
    starts = torch.tensor([[3, 0, -2, 9, 1, 0, 4], [0, 1, 5, -3, 2, 2, 0]])
    together = run(name, replace(call, mask=Mask(7, 7, q_start=starts)))
    for b, r in np.ndindex(2, 7):
        alone = call.batch(b).rows(r, r + 1)
        alone = replace(alone, mask=Mask(1, 7, q_start=int(starts[b, r]) + r))
        torch.testing.assert_close(together[b : b + 1, :, r : r + 1], run(name, alone))


@pytest.mark.parametrize("name", KERNELS)
def test_moving_all_positions_and_later_tokens_change_nothing(name: str) -> None:
    call = drawn(SANDWICH)
    moved = replace(call, mask=replace(call.mask, q_start=500, k_start=500))
    torch.testing.assert_close(run(name, moved), run(name, call))
    changes_nothing_before(name, call, 4)
