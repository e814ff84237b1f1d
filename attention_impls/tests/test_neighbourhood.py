"""Neighbourhood attention: the clamp at the borders, also against attn-gym's mask."""

from __future__ import annotations

import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, answers, by_loop, close, held, pairs, parts_keep_their_place
from attention_impls.tests.variant_steps import definition, drawn, implementation, with_parameters
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "neighbourhood:window-5"
VARIANT = catalogue.find(f"{NAME}.naive").variant


@pytest.mark.parametrize("axes", CALLS)
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict) -> None:
    """The 5 positions nearest to i of those that there are."""
    call = drawn(VARIANT, **axes)
    n = max(call.q.shape[2], call.k.shape[2])
    nearest = [set(sorted(range(n), key=lambda j, i=i: abs(i - j))[:5]) for i in range(n)]
    right = by_loop(call, lambda h, i, j: j in nearest[i])
    for found in answers(NAME, call):
        close(found, right)


@pytest.mark.parametrize("window", [1, 3, 7])
def test_pairs_are_those_of_attn_gym(window: int) -> None:
    """The first line of a square canvas, on which its neighbourhood is `window` long and one high."""
    masks = pytest.importorskip("attn_gym.masks")
    theirs = masks.generate_natten(canvas_w=12, canvas_h=12, kernel_w=1, kernel_h=window)
    i, j = torch.arange(12)[:, None], torch.arange(12)
    variant = catalogue.find(f"neighbourhood:window-{window}.naive").variant
    call = drawn(variant, q_len=12, kv_len=12, mask="full")
    assert torch.equal(variant.weights(call, torch.arange(12))[0, 0] > 0, theirs(0, 0, i, j))


def test_every_query_sees_a_whole_window() -> None:
    assert pairs(VARIANT, drawn(VARIANT, q_len=20, kv_len=20, mask="full")) == 20 * 5


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_window_of_the_length_is_softmax_and_one_of_one_returns_the_values(mask: str) -> None:
    for window in (7, 30):
        name = f"neighbourhood:window-{window}"
        call = drawn(catalogue.find(f"{name}.naive").variant, mask=mask)
        for found in answers(name, call):
            close(found, definition(SOFTMAX, call).numpy())
    call = drawn(catalogue.find("neighbourhood:window-1.naive").variant, mask=mask)
    for found in answers("neighbourhood:window-1", call):
        close(found, call.v.numpy())


def test_any_other_beginnings_are_followed() -> None:
    call = with_parameters(drawn(VARIANT, mask="full"), first=torch.tensor([6, 0, 3, -2, 2, 2, 0]))
    ranges = {0: {6}, 1: {0, 1, 2, 3, 4}, 2: {3, 4, 5, 6}, 3: {0, 1, 2}, 4: {2, 3, 4, 5, 6}, 5: {2, 3, 4, 5, 6}}
    right = by_loop(call, lambda h, i, j: j in ranges.get(i, {0, 1, 2, 3, 4}))
    for found in answers(NAME, call):
        close(found, right)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_part_keeps_its_place(mask: str) -> None:
    parts_keep_their_place(NAME, mask)


def test_what_the_band_holds_grows_with_the_length_alone() -> None:
    name = "neighbourhood:window-17.banded:block-16"
    small, large = (
        held(implementation(name), drawn(catalogue.find(name).variant, q_len=n, kv_len=n, mask="full"))
        for n in (256, 512)
    )
    assert large / small == pytest.approx(2.0, rel=0.05)


def test_a_window_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="window must be at least 1"):
        catalogue.find("neighbourhood:window-0.naive")
