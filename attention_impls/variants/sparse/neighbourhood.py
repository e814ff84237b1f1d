"""Neighbourhood attention along one axis: exact softmax attention to the `window` keys nearest to the query.

Position i of N sees the keys first_i … first_i + window - 1 with first_i = min(max(i - ⌊window / 2⌋, 0), N - window):
at the borders the neighbourhood is pushed inside, where `sliding_window` is cut off, so that every query sees `window`
keys (before the mask). first [N] is a constant, for N, the longer of queries and keys, is nothing that a part of a
call can know. With a window of at least N it is `softmax`; a causal mask hides of it what it hides.

Source: Hassani et al. 2023, "Neighborhood Attention Transformer", arXiv 2204.07143, there on pictures: windows along
both axes. Option: window (odd in the paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, hide
from attention_impls.contract import Growth, Implementation, Parameter
from attention_impls.gathered import Cover, blocks, first_query, lay, masked_by, tiled_by_block
from attention_impls.makers import patterned, softmax_of
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked


def _kept(window: int, call: Call, rows: Tensor) -> Tensor:
    """Bool [1|B, 1, R, J]."""
    start = call.parameters["first"]
    i = call.mask.q_positions(rows.to(start.device)).clamp(0, len(start) - 1)
    j = call.mask.k_start + torch.arange(call.k.shape[2], device=start.device)
    begin = start[i].view(-1, 1, len(rows), 1)
    return (begin <= j) & (j < begin + window)


def _logits(window: int, call: Call, rows: Tensor) -> Tensor:
    return hide(call.q[:, :, rows] @ call.k.mT * call.scale, _kept(window, call, rows))


def _plan(window: int, block: int, call: Call) -> Sequence[Cover]:
    """Blocks of queries, each against the slice of keys from its first neighbourhood's begin to its last one's end."""
    start, queries = call.parameters["first"], blocks(call, block, aligned=False)

    def begin(i: Tensor) -> Tensor:
        return start[i.clamp(0, len(start) - 1)]

    begins = begin(queries.clamp_max(first_query(call.mask) + call.mask.q_len - 1))
    low, high = begins.amin(1, keepdim=True), begins.amax(1, keepdim=True)
    keys = low + torch.arange(int((high - low).max()) + window, device=start.device)
    mask = patterned(call, lambda i, j: (begin(i) <= j) & (j < begin(i) + window)).mask
    return [[lay(mask, queries, keys)]]


def _draw(window: int, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return (torch.arange(*shape) - window // 2).clamp_max(shape[0] - window).clamp_min(0)


def implementations(window: int = 65) -> list[Implementation]:
    """All forms for one window. Raises ValueError for a window below 1."""
    checked("window", window)
    sizes = {"N": lambda workload: max(workload.q_len, workload.kv_len)}
    first = Parameter("N", "constant", draw=partial(_draw, window), sizes=sizes, dtype="int64")
    variant = softmax_of(
        "neighbourhood",
        partial(_logits, window),
        parameters={"first": first},
        paper="Hassani et al. 2023, arXiv 2204.07143",
        formula="A = softmax(scale · q kᵀ) over the `window` nearest keys, pushed inside at the borders",
        cost="time and memory O(I·(window + block)) in a band, O(I·J) with a dense mask",
    )

    def whole(call: Call) -> Tensor:
        return _kept(window, call, torch.arange(call.q.shape[2], device=call.q.device))

    dense = masked_by(variant, whole, softmax_kernel("naive"), softmax_kernel("sdpa_flash"))
    return [
        *dense,
        tiled_by_block("banded", variant, partial(_plan, window), growth=Growth(1, 1, "window and block fixed")),
    ]
