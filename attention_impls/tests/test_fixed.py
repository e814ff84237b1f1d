"""Fixed sparse attention: the pairs of the paper, and what its two steps cost."""

from __future__ import annotations

import pytest

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, answers, by_loop, close, held, pairs, parts_keep_their_place
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "fixed:block-4:summary-2"
VARIANT = catalogue.find(f"{NAME}.naive").variant


@pytest.mark.parametrize("axes", CALLS)
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict) -> None:
    call = drawn(VARIANT, **axes)
    right = by_loop(call, lambda h, i, j: j in (2, 3, 6, 7, 10, 11) or i - i % 4 <= j < i - i % 4 + 4)
    for found in answers(NAME, call):
        close(found, right)


def test_pairs_counted_by_hand() -> None:
    assert pairs(VARIANT, drawn(VARIANT, q_len=8, kv_len=8, mask="full")) == 8 * (4 + 2)
    assert pairs(VARIANT, drawn(VARIANT, q_len=8, kv_len=8)) == (1 + 2 + 3 + 4) + (1 + 2 + 3 + 4) + 4 * 2


@pytest.mark.parametrize("options", ["block-9:summary-1", "block-50:summary-3", "block-4:summary-4"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_one_block_and_summaries_of_everything_are_softmax(options: str, mask: str) -> None:
    call = drawn(VARIANT, q_len=9, kv_len=9, mask=mask)
    for found in answers(f"fixed:{options}", call):
        close(found, definition(SOFTMAX, call).numpy())


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_part_keeps_its_place(mask: str) -> None:
    parts_keep_their_place(NAME, mask)


def test_later_tokens_change_nothing_before() -> None:
    changes_nothing_before(f"{NAME}.two_steps", drawn(VARIANT), 4)


def test_at_the_square_root_what_is_held_grows_with_the_power_three_halves() -> None:
    def kept(b: int) -> int:
        call = drawn(VARIANT, q_len=b * b, kv_len=b * b, head_dim=1, value_dim=1)
        return held(implementation(f"fixed:block-{b}:summary-1.two_steps"), call)

    small, large = kept(16), kept(32)
    assert large / small == pytest.approx(8.0, rel=0.15)


def test_options_without_sense_are_errors() -> None:
    with pytest.raises(ValueError, match="block must be at least 1"):
        catalogue.find("fixed:block-0.naive")
    with pytest.raises(ValueError, match="summary counts columns of a block of 4"):
        catalogue.find("fixed:block-4:summary-5.naive")
