"""T5's relative bias: A = softmax(scale · q kᵀ + b_h[bucket(j − i)]), scale = 1; one learned number a head and bucket.

table [H, N]. Near distances have a bucket each, farther ones share buckets that widen as logarithms do, and
everything from max_distance on shares the last. bidirectional 1: N/2 buckets for keys at or before the query, N/2
for keys after it (an encoder); 0: all N for keys at or before it, later ones in bucket 0 (a decoder). It is an option
and not read off the mask: a part of a causal call, where nothing is hidden, must stay what it was.
With n buckets for a direction, the first n/2 hold one distance each, and distance r ≥ n/2 lies in
n/2 + ⌊(n − n/2) · log(r / (n/2)) / log(max_distance / (n/2))⌋, at most n − 1. The borders are found in whole numbers:
a logarithm in float32, as published, may fall just below one. With a table of zeros it is `dot` (unscaled softmax).
Source: Raffel et al. 2019, "Exploring the Limits of Transfer Learning", arXiv 1910.10683.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from attention_impls.biased import biased, by_distance, row_distances
from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter
from attention_impls.makers import softmax_of
from attention_impls.undefined import one


def borders(buckets: int, max_distance: int) -> list[int]:
    """The smallest distance of every bucket of one direction but the first."""
    exact = buckets // 2
    wide = buckets - exact
    found = list(range(1, exact + 1))
    for step in range(1, wide):
        # the smallest r with (r / exact)^wide ≥ (max_distance / exact)^step, without a logarithm
        r = found[-1]
        while r**wide * exact**step < max_distance**step * exact**wide:
            r += 1
        found.append(r)
    return found


def _bucket(ahead: int, buckets: int, max_distance: int, ways: int) -> int:
    """The bucket of a key that lies `ahead` = j − i positions after the query, by the borders' own logarithms."""
    first, far = 0, max(-ahead, 0)
    if ways == 2:
        buckets //= 2
        first, far = (buckets if ahead > 0 else 0), abs(ahead)
    exact = buckets // 2
    if far < exact:
        return first + far
    ratio = (buckets - exact) * math.log(far / exact) / math.log(max_distance / exact)
    whole = round(ratio) if abs(ratio - round(ratio)) < 1e-9 else math.floor(ratio)
    return first + min(exact + whole, buckets - 1)


def implementations(buckets: int = 32, max_distance: int = 128, bidirectional: int = 1) -> list[Implementation]:
    """T5's attention; bidirectional 1 or 0. Raises ValueError for buckets too few or odd, or a distance within them."""
    if bidirectional not in (0, 1):
        raise ValueError(f"bidirectional is 1 (an encoder's buckets) or 0 (a decoder's); got {bidirectional}")
    ways = 1 + bidirectional
    if buckets < 2 * ways or buckets % ways:
        raise ValueError(f"buckets come in {ways}s, at least {2 * ways}; got {buckets}")
    if max_distance <= buckets // ways // 2:
        raise ValueError(f"max_distance must be beyond {buckets // ways // 2}, the last exact one; got {max_distance}")

    def definition(call: Call, rows: Tensor) -> Tensor:
        ahead, which = (-row_distances(call, rows)[:, 0]).unique(return_inverse=True)
        found = [_bucket(a, buckets, max_distance, ways) for a in ahead.tolist()]
        index = torch.tensor(found, device=which.device, dtype=torch.long)[which]  # [1|B, R, J]
        bias = call.parameters["table"][:, index].movedim(0, 1)
        return call.q[:, :, rows] @ call.k.mT * call.scale + bias

    variant = softmax_of(
        "t5_bias",
        definition,
        parameters={"table": Parameter("H N", "weight", sizes={"N": buckets})},
        scale=one,
        paper="Raffel et al. 2019, arXiv 1910.10683",
        formula="A = softmax(q kᵀ + b_h[bucket(j − i)])",
        cost="time O(I·J·D); memory O(H·I·J) materialised, O(I) and one tile of bias tiled",
    )
    edges = torch.tensor(borders(buckets // ways, max_distance))

    def value(table: Tensor, far: Tensor) -> Tensor:
        size = far.abs() if ways == 2 else far.clamp(min=0)
        index = torch.bucketize(size, edges.to(far.device), right=True)
        return table[:, index + (far < 0) * (buckets // 2) if ways == 2 else index]

    def bias(part: Call) -> Tensor:
        return by_distance(part, partial(value, part.parameters["table"]))

    return biased(variant, bias)
