"""Dilated sliding window: exact softmax attention to every `rate`-th key near the query's own position.

Query position i sees key position j where |i - j| < window and (i - j) mod rate = 0, itself included: the window is
`sliding_window`'s, and of its keys one in `rate` is left. Positions are the mask's absolute ones. At rate 1 it is
`sliding_window`; with a window of at most `rate` a query sees itself alone.

Source: Beltagy et al. 2020, "Longformer", arXiv 2004.05150, which dilates some heads; here all have the same rate.
The package attn-gym keeps |i - j| ≤ window. Options: window, rate.

The kernel `residues` takes the tokens of one residue class modulo `rate` side by side: among them the window is dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation
from attention_impls.gathered import Cover, around, first_query, lay, tiled_by_block
from attention_impls.makers import over, variant_over
from attention_impls.mask import Pattern
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked
from attention_impls.variants.exact.tiles import tiles
from attention_impls.variants.scores.softmax import SOFTMAX


def spaced(window: int, rate: int) -> Pattern:
    """|i - j| < window and (i - j) mod rate = 0."""
    return lambda i, j: ((i - j) < window) & ((j - i) < window) & ((i - j) % rate == 0)


def _plan(window: int, rate: int, block: int, call: Call) -> Sequence[Cover]:
    """Tiles of `block` queries of one residue class, `rate` positions apart, against the keys of that class."""
    mask, device = call.mask, call.q.device
    reach = (window - 1) // rate
    steps = torch.arange(0, -(-mask.q_len // rate), block, device=device)  # counted in tokens of a class
    steps = steps[:, None] + torch.arange(block, device=device)
    keys = around(steps, reach, 0 if mask.causal else reach)
    first = first_query(mask) + torch.arange(rate, device=device)[:, None, None]  # of every class
    return [[lay(mask, (first + rate * steps).flatten(0, 1), (first + rate * keys).flatten(0, 1))]]


def implementations(window: int = 256, rate: int = 4) -> list[Implementation]:
    """All forms. Raises ValueError for a window or a rate below 1."""
    pattern = spaced(checked("window", window), checked("rate", rate))
    variant = variant_over(
        "dilated",
        pattern,
        SOFTMAX,
        paper="Beltagy et al. 2020, arXiv 2004.05150",
        formula="A = softmax(scale · q kᵀ) over |i - j| < window, (i - j) mod rate = 0",
        cost="time and memory O(I·(window/rate + block)) by residues, O(I·J) with a dense mask",
    )
    dense = softmax_kernel("naive"), softmax_kernel("sdpa_flash")  # the pattern as a mask: every pair is computed
    residues = tiled_by_block("residues", variant, partial(_plan, window, rate), growth=Growth(1, 1, "window fixed"))
    return [*over(variant, pattern, *dense, tiles()), residues]
