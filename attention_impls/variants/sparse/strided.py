"""Strided attention: exact softmax attention to the last `stride` keys and to every `stride`-th key before them.

Query position i sees key position j where |i - j| < stride or (i - j) mod stride = 0; under a causal mask, as in the
paper, only j ≤ i. On a picture of `stride` columns read row by row that is the row's worth of pixels just before, and
the column above. With a stride of at least the length, and with stride 1, it is `softmax`.

Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", arXiv 1904.10509, both sets merged in
one head (its window holds i - stride too, which the second set has anyway). Option: stride (the square root of the
length makes it fastest).

The kernel `two_steps` attends to the window in blocks, then to the rest of the own residue class, whose tokens it takes
side by side; the two share no key, and their log-sum-exps join them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from attention_impls.call import Call
from attention_impls.contract import Implementation
from attention_impls.gathered import Cover, around, blocks, first_query, lay, tiled
from attention_impls.makers import over, patterned, variant_over
from attention_impls.mask import Pattern
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked
from attention_impls.variants.exact.tiles import tiles
from attention_impls.variants.scores.softmax import SOFTMAX
from attention_impls.variants.sparse.sliding_window import near


def strides(stride: int) -> Pattern:
    """|i - j| < stride or (i - j) mod stride = 0."""
    return lambda i, j: ((i - j < stride) & (j - i < stride)) | ((i - j) % stride == 0)


def _plan(stride: int, call: Call) -> Sequence[Cover]:
    return [_window(stride, call), _columns(stride, call)]


def _window(stride: int, call: Call) -> Cover:
    mask = patterned(call, near(stride)).mask
    queries = blocks(call, stride, aligned=False)
    return [lay(mask, queries, around(queries, stride - 1, 0 if mask.causal else stride - 1))]


def _columns(stride: int, call: Call) -> Cover:
    """A tile a residue class: all its queries against all its keys."""
    mask = patterned(call, lambda i, j: i != j).mask  # the window has it
    first = first_query(mask) + torch.arange(stride, device=call.q.device)[:, None]
    queries = first + stride * torch.arange(-(-mask.q_len // stride), device=call.q.device)
    start = mask.k_start + (first - mask.k_start) % stride
    keys = start + stride * torch.arange(-(-mask.kv_len // stride), device=call.q.device)
    return [lay(mask, queries, keys)]


def implementations(stride: int = 64) -> list[Implementation]:
    """All forms for one stride. Raises ValueError for a stride below 1."""
    pattern = strides(checked("stride", stride))
    variant = variant_over(
        "strided",
        pattern,
        SOFTMAX,
        paper="Child et al. 2019, arXiv 1904.10509",
        formula="A = softmax(scale · q kᵀ) over |i - j| < stride or (i - j) mod stride = 0",
        cost="time and memory O(I·(stride + J/stride)) in two steps, N^3/2 where stride = √N; O(I·J) with a dense mask",
    )
    dense = softmax_kernel("naive"), softmax_kernel("sdpa_flash")  # the pattern as a mask: every pair is computed
    return [*over(variant, pattern, *dense, tiles()), tiled("two_steps", variant, partial(_plan, stride))]
