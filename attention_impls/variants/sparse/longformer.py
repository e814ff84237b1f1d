"""Longformer: exact softmax attention in a window, with a few global tokens that see all and that all see.

Query position i sees key position j where |i - j| < window, or i < global_tokens, or j < global_tokens: the global
tokens are the first ones (a class token, a question). Positions are the mask's absolute ones; under a causal mask
global tokens too see only what came before. Without global tokens it is `sliding_window`, with a window of at least
the length `softmax`.

Source: Beltagy et al. 2020, "Longformer", arXiv 2004.05150. There global tokens have projections of their own,
separate q, k and v for what they read; projections are a layer's business, and here all pairs use the same. It counts
w/2 keys on each side: its w is window = w/2 + 1 here. Options: window, global_tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation
from attention_impls.gathered import Cover, first_query, lay, tiled_by_block, windowed
from attention_impls.makers import over, variant_over
from attention_impls.mask import Pattern
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked
from attention_impls.variants.exact.tiles import tiles
from attention_impls.variants.scores.softmax import SOFTMAX


def near_or_global(window: int, tokens: int) -> Pattern:
    """|i - j| < window, or i < tokens, or j < tokens."""
    return lambda i, j: ((i - j < window) & (j - i < window)) | (i < tokens) | (j < tokens)


def _plan(window: int, tokens: int, block: int, call: Call) -> Sequence[Cover]:
    """One tile of the global queries against every key; the others in blocks, each against its window and the global
    keys. No row is in both."""
    mask, device = call.mask, call.q.device
    first, last = first_query(mask), first_query(mask) + mask.q_len
    border = min(max(tokens, first), last)
    cover = []
    if first < border:
        every = mask.k_start + torch.arange(mask.kv_len, device=device)
        cover.append(lay(mask, torch.arange(first, border, device=device)[None], every[None]))
    if border < last:
        queries = torch.arange(border, last, block, device=device)[:, None] + torch.arange(block, device=device)
        cover.append(lay(mask, queries, windowed(mask, queries, window, tokens)))
    return [cover]


def implementations(window: int = 256, global_tokens: int = 16) -> list[Implementation]:
    """All forms. Raises ValueError for a window below 1 or fewer global tokens than none."""
    if global_tokens < 0:
        raise ValueError(f"option global_tokens cannot be negative; got {global_tokens}")
    pattern = near_or_global(checked("window", window), global_tokens)
    variant = variant_over(
        "longformer",
        pattern,
        SOFTMAX,
        paper="Beltagy et al. 2020, arXiv 2004.05150",
        formula="A = softmax(scale · q kᵀ) over |i - j| < window and all pairs with one of the first global_tokens",
        cost="time and memory O(I·(window + block + g) + g·J) in a band, g = global_tokens; O(I·J) with a dense mask",
    )
    dense = softmax_kernel("naive"), softmax_kernel("sdpa_flash")  # the pattern as a mask: every pair is computed
    banded = tiled_by_block(
        "banded", variant, partial(_plan, window, global_tokens), growth=Growth(1, 1, "window and global tokens fixed")
    )
    return [*over(variant, pattern, *dense, tiles()), banded]
