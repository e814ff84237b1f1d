"""Block-diagonal attention: exact softmax attention in which a query sees only the keys of its own block.

Query position i sees key position j where ⌊i / block⌋ = ⌊j / block⌋; positions are the mask's absolute ones, so that
blocks lie at multiples of `block` wherever a call begins. With a block of at least the length it is `softmax`.
BlockBERT permutes blocks from head to head; here every head has the diagonal.
Source: Qiu et al. 2020, "Blockwise Self-Attention for Long Document Understanding", arXiv 1911.02972. Option: block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation
from attention_impls.gathered import Cover, blocks, lay, tiled
from attention_impls.makers import over, variant_over
from attention_impls.mask import Pattern
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked
from attention_impls.variants.exact.tiles import tiles
from attention_impls.variants.scores.softmax import SOFTMAX


def same_block(block: int) -> Pattern:
    """⌊i / block⌋ = ⌊j / block⌋."""
    return lambda i, j: i // block == j // block


def _plan(block: int, call: Call) -> Sequence[Cover]:
    """One tile a block: its queries against its keys."""
    own = blocks(call, block)
    return [[lay(call.mask, own, own)]]


def implementations(block: int = 64) -> list[Implementation]:
    """All forms for one size of block. Raises ValueError for a block below 1."""
    pattern = same_block(checked("block", block))
    variant = variant_over(
        "block_diagonal",
        pattern,
        SOFTMAX,
        paper="Qiu et al. 2020, arXiv 1911.02972",
        formula="A = softmax(scale · q kᵀ) over the keys of the own block",
        cost="time and memory O(I·block) in blocks, O(I·J) with a dense mask",
    )
    return [
        *over(variant, pattern, softmax_kernel("naive"), tiles()),
        tiled("blocks", variant, partial(_plan, block), growth=Growth(1, 1, "block fixed")),
    ]
