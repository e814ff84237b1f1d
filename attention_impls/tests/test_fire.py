"""FIRE: the network by a loop on both sides of its threshold, and what it reduces to."""

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

KERNELS = tuple(f"fire:hidden-5.{kernel}" for kernel in ("naive", "tiled", "tiled:block-2"))
FIRE = catalogue.find(KERNELS[0]).variant
CALLS = [{"mask": "full"}, {"kv_heads": 2}, {"q_len": 3, "mask": "causal:bottom_right"}]


def near(call, threshold: float = 3.5):
    """The call with a threshold that some of its few queries have passed."""
    return with_parameters(call, threshold=torch.tensor([threshold]).double())


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, axes: dict, sign: float) -> None:
    """Slope and threshold count by their magnitudes."""
    call = near(drawn(FIRE, **axes), sign * 3.5)
    call = with_parameters(call, slope=sign * call.parameters["slope"])
    p = {name: value.numpy() for name, value in call.parameters.items()}

    def psi(x: float) -> float:
        return math.log(abs(p["slope"][0]) * x + 1)

    def logit(h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        share = psi(abs(i - j)) / psi(max(i, 3.5))
        hidden = [max(p["w1"][s] * share + p["b1"][s], 0.0) for s in range(5)]
        return sum(q * k) / 2.0 + sum(p["w2"][h] * hidden)

    expected = out_by_loop(call, weights_by_position(call, logit))
    torch.testing.assert_close(definition(FIRE, call), expected)
    torch.testing.assert_close(run(name, call), expected)


@pytest.mark.parametrize("name", KERNELS)
def test_a_network_of_zeros_is_softmax(name: str) -> None:
    call = drawn(FIRE, mask="full")
    flat = with_parameters(call, w2=torch.zeros(4, 5).double())
    torch.testing.assert_close(run(name, flat), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", KERNELS)
def test_a_move_of_all_positions_is_felt_past_the_threshold_only(name: str) -> None:
    def moved(call):
        return replace(call, mask=replace(call.mask, q_start=5, k_start=5))

    short, long = near(drawn(FIRE), 100.0), near(drawn(FIRE))
    torch.testing.assert_close(run(name, moved(short)), run(name, short))
    assert not torch.allclose(run(name, moved(long)), run(name, long))


@pytest.mark.parametrize("name", KERNELS)
def test_the_last_row_of_a_whole_is_the_one_query_at_its_end(name: str) -> None:
    call = near(drawn(FIRE))
    torch.testing.assert_close(run(name, call.rows(6, 7)), run(name, call)[:, :, 6:])


@pytest.mark.parametrize("name", KERNELS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, near(drawn(FIRE)), 4)
