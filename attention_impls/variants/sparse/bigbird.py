"""BigBird: exact softmax attention to a window of blocks, the first and last block, and a few random blocks.

Block p of N, for each head: sees blocks p - 1, p, p + 1, the first, the last, and `random` drawn once for this head and
block; the first and the last block see all. As in the paper a drawn block may be one that it sees already (transformers
draws among the others). The layout [H, N, N] is drawn so as a constant, and kernels take any other (`block_sparse`). N
blocks hold the longer of queries and keys, so that "last" does not depend on how a call is cut; the paper's
is an encoder, and a causal mask hides of it what it hides. With three blocks, or N random ones, it is `softmax`.

Source: Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", arXiv 2007.14062, its internal
construction with one global block at each end. Options: block, random.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_impls.contract import Growth, Implementation
from attention_impls.tiling import checked
from attention_impls.variants.sparse.block_sparse import kernels, of_layout


def _draw(random: int, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    heads, blocks = shape[0], shape[1]
    p = torch.arange(blocks)
    ends = (p == 0) | (p == blocks - 1)
    always = ((p[:, None] - p).abs() <= 1) | ends | ends[:, None]
    drawn = torch.rand((heads, blocks, blocks), generator=generator).topk(min(random, blocks)).indices
    layout: Tensor = always.expand(shape).clone().scatter_(2, drawn, True)
    return layout


def implementations(block: int = 64, random: int = 3) -> list[Implementation]:
    """All forms. Raises ValueError for a block below 1 or fewer random blocks than none."""
    if random < 0:
        raise ValueError(f"option random counts blocks and cannot be negative; got {random}")
    variant = of_layout(
        "bigbird",
        checked("block", block),
        partial(_draw, random),
        paper="Zaheer et al. 2020, arXiv 2007.14062",
        formula="A = softmax(scale · q kᵀ) over blocks p - 1 … p + 1, the first, the last and `random` drawn ones",
        cost="time and memory O(I·block·(5 + random)) in blocks, O(I·J) with a dense mask",
    )
    return kernels(variant, block, Growth(1, 1, "block and random fixed"))
