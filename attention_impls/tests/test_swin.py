"""Swin windows: squares of a grid, also by the paper's way of rolling the picture and masking what was rolled."""

from __future__ import annotations

import numpy as np
import pytest

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, answers, by_loop, close, held, pairs, parts_keep_their_place
from attention_impls.tests.variant_steps import definition, drawn, implementation, softmax_loop
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "swin:window-2:width-4:shift-1"
VARIANT = catalogue.find(f"{NAME}.naive").variant
#  0 | 1  2 | 3
#  --+------+--
#  4 | 5  6 | 7
#  8 | 9 10 | 11
#  --+------+--
# 12 | 13 …
WINDOWS = ({0}, {1, 2}, {3}, {4, 8}, {5, 6, 9, 10}, {7, 11}, {12, 16}, {13, 14, 17, 18}, {15, 19})


@pytest.mark.parametrize("axes", CALLS)
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict) -> None:
    call = drawn(VARIANT, **axes)
    right = by_loop(call, lambda h, i, j: any(i in window and j in window for window in WINDOWS))
    for found in answers(NAME, call):
        close(found, right)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_it_is_the_papers_rolled_grid_with_its_mask(shift: int) -> None:
    """Six rows of nine: roll by -shift, cut into squares of 3, let tokens see those of their square that lay on the
    same side of the seam; then roll back."""
    height, width, window = 6, 9, 3
    name = f"swin:window-{window}:width-{width}:shift-{shift}"
    call = drawn(
        catalogue.find(f"{name}.naive").variant, q_len=54, kv_len=54, batch=1, heads=2, kv_heads=2, mask="full"
    )
    at = np.roll(np.arange(54).reshape(height, width), (-shift, -shift), (0, 1))
    seam = np.zeros((height, width), int)
    if shift:
        seam[-shift:], seam[:, -shift:] = 1, seam[:, -shift:] + 2
        seam[-shift:, -shift:] = 3
    right = np.zeros((1, 2, 54, 4))
    for y in range(0, height, window):
        for x in range(0, width, window):
            tokens = at[y : y + window, x : x + window].ravel()
            side = seam[y : y + window, x : x + window].ravel()
            for h in range(2):
                logits = (call.q[0, h, tokens] @ call.k[0, h, tokens].T / 2.0).numpy()
                for one, token in enumerate(tokens):
                    right[0, h, token] = softmax_loop(logits[one], side == side[one]) @ call.v[0, h, tokens].numpy()
    for found in answers(name, call):
        close(found, right)


def test_pairs_counted_by_hand() -> None:
    assert pairs(VARIANT, drawn(VARIANT, q_len=12, kv_len=12, mask="full")) == 1 + 4 + 1 + 4 + 16 + 4


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_one_window_is_softmax_and_windows_of_one_return_the_values(mask: str) -> None:
    call = drawn(VARIANT, mask=mask)
    for found in answers("swin:window-7:width-7", call):
        close(found, definition(SOFTMAX, call).numpy())
    for found in answers("swin:window-1:width-3", call):
        close(found, call.v.numpy())


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_part_keeps_its_place(mask: str) -> None:
    parts_keep_their_place(NAME, mask)


def test_what_the_windows_hold_grows_with_the_length_alone() -> None:
    made = implementation("swin:window-4:width-16.windows")
    small, large = (held(made, drawn(VARIANT, q_len=n, kv_len=n, mask="full")) for n in (256, 512))
    assert large / small == pytest.approx(2.0, rel=0.05)


def test_options_without_sense_are_errors() -> None:
    for option in ("window", "width"):
        with pytest.raises(ValueError, match=f"{option} must be at least 1"):
            catalogue.find(f"swin:{option}-0.naive")
    with pytest.raises(ValueError, match=r"shift must lie in 0 … 3"):
        catalogue.find("swin:window-4:shift-4.naive")
