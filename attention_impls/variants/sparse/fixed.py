"""Fixed sparse attention: exact softmax attention to the own block and to the last columns of every block.

Query position i sees key position j where ⌊i / block⌋ = ⌊j / block⌋ or j mod block ≥ block - summary: the last
`summary` positions of a block pass on what they read of it; under a causal mask, as in the paper, only j ≤ i. Positions
are the mask's absolute ones. With a block of at least the length, and with summary = block, it is `softmax`.

Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", arXiv 1904.10509, both sets merged in
one head; there heads may take different columns of the block. Options: block (the square root of the length makes it
fastest), summary.

The kernel `two_steps` attends to the own block, then to all other blocks' summaries gathered side by side; the two
share no key, and their log-sum-exps join them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from attention_impls.call import Call
from attention_impls.contract import Implementation
from attention_impls.gathered import Cover, blocks, lay, tiled
from attention_impls.makers import over, patterned, variant_over
from attention_impls.mask import Pattern
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked
from attention_impls.variants.exact.tiles import tiles
from attention_impls.variants.scores.softmax import SOFTMAX
from attention_impls.variants.sparse.block_diagonal import same_block


def summaries(block: int, summary: int) -> Pattern:
    """⌊i / block⌋ = ⌊j / block⌋ or j mod block ≥ block - summary."""
    return lambda i, j: (i // block == j // block) | (j % block >= block - summary)


def _plan(block: int, summary: int, call: Call) -> Sequence[Cover]:
    own = blocks(call, block)
    inside: Cover = [lay(patterned(call, same_block(block)).mask, own, own)]
    at = call.mask.k_start + torch.arange(call.mask.kv_len, device=call.q.device)
    columns = at[at % block >= block - summary]
    if not len(columns):
        return [inside]
    elsewhere = patterned(call, lambda i, j: i // block != j // block).mask
    return [inside, [lay(elsewhere, own, columns.expand(len(own), -1))]]


def implementations(block: int = 64, summary: int = 4) -> list[Implementation]:
    """All forms. Raises ValueError for a size below 1 or a summary longer than its block."""
    checked("block", block)
    if checked("summary", summary) > block:
        raise ValueError(f"option summary counts columns of a block of {block} and cannot be {summary}")
    pattern = summaries(block, summary)
    variant = variant_over(
        "fixed",
        pattern,
        SOFTMAX,
        paper="Child et al. 2019, arXiv 1904.10509",
        formula="A = softmax(scale · q kᵀ) over the own block and the last `summary` keys of every block",
        cost="time and memory O(I·(block + summary·J/block)) in two steps, N^3/2 where block = √N; O(I·J) dense",
    )
    dense = softmax_kernel("naive"), softmax_kernel("sdpa_flash")  # the pattern as a mask: every pair is computed
    return [*over(variant, pattern, *dense, tiles()), tiled("two_steps", variant, partial(_plan, block, summary))]
