"""Longformer: window and global tokens, and that the band is cheap."""

from __future__ import annotations

import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, answers, by_loop, close, held, pairs, parts_keep_their_place
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "longformer:window-3:global_tokens-2"
VARIANT = catalogue.find(f"{NAME}.naive").variant


@pytest.mark.parametrize("axes", CALLS)
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict) -> None:
    call = drawn(VARIANT, **axes)
    right = by_loop(call, lambda h, i, j: j - i in (-2, -1, 0, 1, 2) or 0 in (i, j) or 1 in (i, j))
    for found in answers(NAME, call):
        close(found, right)


def test_pairs_counted_by_hand() -> None:
    """Of 8 tokens 2 see all; the others see 2 global ones and, of 2 … 7, three, four, five, five, four, three."""
    call = drawn(VARIANT, q_len=8, kv_len=8, mask="full")
    assert pairs(VARIANT, call) == 2 * 8 + 6 * 2 + (3 + 4 + 5 + 5 + 4 + 3)


def test_pairs_are_those_of_attn_gym() -> None:
    """Its window is causal and keeps i - j <= window; its global tokens look at all before them."""
    masks = pytest.importorskip("attn_gym.masks")
    window = masks.generate_sliding_window(2)
    none, i, j = torch.tensor(0), torch.arange(11)[:, None], torch.arange(11)
    theirs = (window(none, none, i, j) | (i < 2) | (j < 2)) & (j <= i)
    call = drawn(VARIANT, q_len=11, kv_len=11)
    assert torch.equal(VARIANT.weights(call, torch.arange(11))[0, 0] > 0, theirs)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_reductions_to_softmax_and_to_the_sliding_window(mask: str) -> None:
    call = drawn(VARIANT, q_len=9, kv_len=9, mask=mask)
    for options in ("window-9:global_tokens-1", "window-1:global_tokens-9", "window-2:global_tokens-30"):
        for found in answers(f"longformer:{options}", call):
            close(found, definition(SOFTMAX, call).numpy())
    window = definition(catalogue.find("sliding_window:window-3.naive").variant, call)
    for found in answers("longformer:window-3:global_tokens-0", call):
        close(found, window.numpy())


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_part_keeps_its_place(mask: str) -> None:
    parts_keep_their_place(NAME, mask)


def test_later_tokens_change_nothing_before() -> None:
    changes_nothing_before(f"{NAME}.banded", drawn(VARIANT), 4)


def test_what_the_band_holds_grows_with_the_length_alone() -> None:
    made = implementation("longformer:window-16:global_tokens-4.banded:block-16")
    small, large = (held(made, drawn(VARIANT, q_len=n, kv_len=n, mask="full")) for n in (512, 1024))
    assert large / small == pytest.approx(2.0, rel=0.05)


def test_options_without_sense_are_errors() -> None:
    with pytest.raises(ValueError, match="window must be at least 1"):
        catalogue.find("longformer:window-0.naive")
    with pytest.raises(ValueError, match="global_tokens cannot be negative"):
        implementation("longformer:global_tokens--1.naive")
