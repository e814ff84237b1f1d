"""Swin windows: tokens on a grid see the tokens of their own square window; shifted, squares straddle its borders.

Position p stands at row p // width, column p % width. Query i sees key j where both stand in the same window:
⌊(row - shift) / window⌋ and ⌊(column - shift) / window⌋ agree. That is the paper's rolled grid with its mask (what is
rolled round the edge sees only what came with it): windows at an edge are smaller. The last row of the grid may be
short. With window and width of at least the length, unshifted, it is `softmax`.

Source: Liu et al. 2021, "Swin Transformer", arXiv 2103.14030, which takes shift = 0 and window // 2 in turn, layer by
layer; its relative position bias is another mechanism. Options: window, width, shift (below window).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation
from attention_impls.gathered import Cover, first_query, lay, tiled
from attention_impls.makers import over, variant_over
from attention_impls.mask import Pattern
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked
from attention_impls.variants.exact.tiles import tiles
from attention_impls.variants.scores.softmax import SOFTMAX


def same_window(window: int, width: int, shift: int) -> Pattern:
    """The same square of the grid."""
    return lambda i, j: (
        ((i // width - shift) // window == (j // width - shift) // window)
        & ((i % width - shift) // window == (j % width - shift) // window)
    )


def _plan(window: int, width: int, shift: int, call: Call) -> Sequence[Cover]:
    """One tile a window: its tokens against themselves. Squares reach over the grid's edges with no token there."""
    mask, device = call.mask, call.q.device
    first, last = first_query(mask), first_query(mask) + mask.q_len - 1
    step = torch.arange(window, device=device)
    above = range((first // width - shift) // window, (last // width - shift) // window + 1)
    beside = range(-shift // window, (width - 1 - shift) // window + 1)
    row, column = (torch.tensor(list(n), device=device)[:, None] * window + shift + step for n in (above, beside))
    row, column = row[:, None, :, None], column[None, :, None, :]  # [above, beside, window, window]
    square = row * width + column
    nowhere = min(first, mask.k_start) - 1  # a position that neither queries nor keys of the call have
    square = square.masked_fill((column < 0) | (column >= width), nowhere).flatten(0, 1).flatten(1)
    return [[lay(mask, square, square)]]


def implementations(window: int = 8, width: int = 32, shift: int = 0) -> list[Implementation]:
    """All forms. Raises ValueError for a size below 1 or a shift outside 0 … window - 1."""
    checked("window", window)
    if not 0 <= shift < window:
        raise ValueError(f"option shift must lie in 0 … {window - 1}, below the window; got {shift}")
    pattern = same_window(window, checked("width", width), shift)
    variant = variant_over(
        "swin",
        pattern,
        SOFTMAX,
        paper="Liu et al. 2021, arXiv 2103.14030",
        formula="A = softmax(scale · q kᵀ) over the tokens of the own square of the grid",
        cost="time and memory O(I·window²) in windows, O(I·J) with a dense mask",
    )
    dense = softmax_kernel("naive"), softmax_kernel("sdpa_flash")  # the pattern as a mask: every pair is computed
    windows = tiled("windows", variant, partial(_plan, window, width, shift), growth=Growth(1, 1, "window fixed"))
    return [*over(variant, pattern, *dense, tiles()), windows]
