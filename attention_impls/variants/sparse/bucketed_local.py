"""Bucketed local attention: exact softmax attention in which a query sees its own bucket of keys and those beside it.

Query position i sees key position j where -forward ≤ ⌊i / bucket⌋ - ⌊j / bucket⌋ ≤ backward; under a causal mask only
what does not stand after it. So how far a query sees depends on where in its bucket it stands: between
backward · bucket + 1 and (backward + 1) · bucket keys up to its own. Positions are the mask's absolute ones. With
no neighbours it is `block_diagonal`, with a bucket of at least the length `softmax`.

Sources: Roy et al. 2020, arXiv 2003.05997 (its local heads); the package local-attention, whose defaults are
backward = 1 and forward = 1, or 0 where it is causal. Options: bucket, backward, forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation
from attention_impls.gathered import Cover, around, blocks, lay, tiled
from attention_impls.makers import over, variant_over
from attention_impls.mask import Pattern
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked
from attention_impls.variants.exact.tiles import tiles
from attention_impls.variants.scores.softmax import SOFTMAX


def beside(bucket: int, backward: int, forward: int) -> Pattern:
    """-forward ≤ ⌊i / bucket⌋ - ⌊j / bucket⌋ ≤ backward."""
    return lambda i, j: (i // bucket - j // bucket <= backward) & (j // bucket - i // bucket <= forward)


def _plan(bucket: int, backward: int, forward: int, call: Call) -> Sequence[Cover]:
    """One tile a bucket: its queries against its keys and its neighbours'."""
    queries, ahead = blocks(call, bucket), 0 if call.mask.causal else forward * bucket
    return [[lay(call.mask, queries, around(queries, backward * bucket, ahead))]]


def implementations(bucket: int = 64, backward: int = 1, forward: int = 1) -> list[Implementation]:
    """All forms. Raises ValueError for a bucket below 1 or fewer neighbours than none."""
    for name, count in (("backward", backward), ("forward", forward)):
        if count < 0:
            raise ValueError(f"option {name} counts buckets and cannot be negative; got {count}")
    pattern = beside(checked("bucket", bucket), backward, forward)
    variant = variant_over(
        "bucketed_local",
        pattern,
        SOFTMAX,
        paper="Roy et al. 2020, arXiv 2003.05997",
        formula="A = softmax(scale · q kᵀ) over the own bucket, `backward` before it and `forward` after it",
        cost="time and memory O(I·bucket·(backward + 1 + forward)) in buckets, O(I·J) with a dense mask",
    )
    dense = softmax_kernel("naive"), softmax_kernel("sdpa_flash")  # the pattern as a mask: every pair is computed
    plan = partial(_plan, bucket, backward, forward)
    return [
        *over(variant, pattern, *dense, tiles()),
        tiled("buckets", variant, plan, growth=Growth(1, 1, "bucket fixed")),
    ]
