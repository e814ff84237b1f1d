"""Strided attention: the pairs of the paper, and what its two steps cost."""

from __future__ import annotations

import pytest

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, answers, by_loop, close, held, pairs, parts_keep_their_place
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "strided:stride-3"
VARIANT = catalogue.find(f"{NAME}.naive").variant


@pytest.mark.parametrize("axes", CALLS)
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict) -> None:
    call = drawn(VARIANT, **axes)
    right = by_loop(call, lambda h, i, j: j in (i - 2, i - 1, i, i + 1, i + 2) or j % 3 == i % 3)
    for found in answers(NAME, call):
        close(found, right)


def test_causal_pairs_are_the_papers_two_sets() -> None:
    """A1 = {max(0, i - l) … i} and A2 = {j ≤ i: (i - j) mod l = 0} of section 4.2, merged; counted as sets."""
    call = drawn(VARIANT, q_len=20, kv_len=20)
    sets = [{*range(max(0, i - 3), i + 1)} | {j for j in range(i + 1) if (i - j) % 3 == 0} for i in range(20)]
    assert pairs(VARIANT, call) == sum(len(one) for one in sets)
    right = by_loop(call, lambda h, i, j: j in sets[i])
    for found in answers(NAME, call):
        close(found, right)


@pytest.mark.parametrize("stride", [1, 9, 50])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_stride_one_and_a_stride_of_the_length_are_softmax(stride: int, mask: str) -> None:
    call = drawn(VARIANT, q_len=9, kv_len=9, mask=mask)
    for found in answers(f"strided:stride-{stride}", call):
        close(found, definition(SOFTMAX, call).numpy())


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_part_keeps_its_place(mask: str) -> None:
    parts_keep_their_place(NAME, mask)


def test_later_tokens_change_nothing_before() -> None:
    changes_nothing_before(f"{NAME}.two_steps", drawn(VARIANT), 4)


def test_at_the_square_root_what_is_held_grows_with_the_power_three_halves() -> None:
    small, large = (
        held(implementation(f"strided:stride-{s}.two_steps"), drawn(VARIANT, q_len=s * s, kv_len=s * s, mask="full"))
        for s in (16, 32)
    )
    assert large / small == pytest.approx(8.0, rel=0.15)


def test_a_stride_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="stride must be at least 1"):
        catalogue.find("strided:stride-0.naive")
