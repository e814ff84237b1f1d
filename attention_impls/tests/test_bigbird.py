"""BigBird: what the drawn layouts keep, block by block."""

from __future__ import annotations

import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.static_patterns import answers, by_loop, close, pairs, parts_keep_their_place
from attention_impls.tests.variant_steps import definition, drawn, implementation, with_parameters
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "bigbird:block-2:random-1"
VARIANT = catalogue.find(f"{NAME}.naive").variant


def always(p: int, q: int, last: int) -> bool:
    return abs(p - q) <= 1 or 0 in (p, q) or last in (p, q)


@pytest.mark.parametrize("mask", ["full", "causal", "padded:0.5"])
def test_definition_and_every_form_agree_with_a_loop_over_elements(mask: str) -> None:
    call = drawn(VARIANT, q_len=19, kv_len=19, kv_heads=2, mask=mask)
    layout = call.parameters["layout"].tolist()
    right = by_loop(call, lambda h, i, j: always(i // 2, j // 2, 9) or layout[h][i // 2][j // 2])
    for found in answers(NAME, call):
        close(found, right)


def test_layouts_have_window_ends_and_as_many_drawn_blocks_as_asked_at_most() -> None:
    layout = drawn(catalogue.find("bigbird:block-1:random-2.naive").variant, q_len=40, kv_len=40).parameters["layout"]
    extra = [
        sum(bool(layout[h, p, q]) and not always(p, q, 39) for q in range(40)) for h in range(4) for p in range(1, 39)
    ]
    assert all(layout[:, p, q].all() for p in range(40) for q in range(40) if always(p, q, 39))
    assert max(extra) == 2 and sum(extra) > 1.5 * len(extra)  # 5 of 40 draws repeat what is seen already
    assert not torch.equal(layout[0], layout[1])


def test_pairs_without_random_blocks_counted_by_hand() -> None:
    """Six blocks of two: rows 0 and 5 see 6 blocks, rows 1 and 4 see 4 (0 … 2 and 5), rows 2 and 3 see 5."""
    call = drawn(catalogue.find("bigbird:block-2:random-0.naive").variant, q_len=12, kv_len=12, mask="full")
    assert pairs(VARIANT, call) == 4 * (6 + 4 + 5 + 5 + 4 + 6)


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("options", ["block-3:random-0", "block-2:random-6", "block-20:random-1"])
def test_three_blocks_or_all_of_them_drawn_are_softmax(options: str, mask: str) -> None:
    name = f"bigbird:{options}"
    n = 12 if options.startswith("block-2:") else 9
    call = drawn(catalogue.find(f"{name}.naive").variant, q_len=n, kv_len=n, mask=mask)
    for found in answers(name, call):
        close(found, definition(SOFTMAX, call).numpy())


def test_any_other_layout_is_followed() -> None:
    call = drawn(VARIANT, mask="full")
    own = with_parameters(call, layout=torch.eye(4, dtype=torch.bool).expand(4, 4, 4))
    right = definition(catalogue.find("block_diagonal:block-2.naive").variant, call)
    for found in answers(NAME, own):
        close(found, right.numpy())


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_part_keeps_its_place(mask: str) -> None:
    parts_keep_their_place(NAME, mask)


def test_options_without_sense_are_errors() -> None:
    with pytest.raises(ValueError, match="block must be at least 1"):
        catalogue.find("bigbird:block-0.naive")
    with pytest.raises(ValueError, match="random counts blocks"):
        implementation("bigbird:random--1.naive")
