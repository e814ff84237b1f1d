"""`key_chunks:C`: all queries against C keys at a time, joined by log-sum-exp or by sum.

Only mechanisms whose results over disjoint key sets combine can be cut so. Keys that nobody sees are left out.
Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory", arXiv 2112.05682 (key chunks);
the running join is that of Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", arXiv 1805.02867.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call, merge_by_lse
from attention_impls.chunking import Part, bounds, chunk_size, chunked, sizes, was_cut
from attention_impls.contract import UNKNOWN, Footprint, Implementation, Lse, Output, Transform, Workload
from attention_impls.footprint import output, per_query

LABEL = "key_chunks"


def _wrap(inner: Implementation, argument: str | None) -> Implementation:
    size, variant = chunk_size(LABEL, argument), inner.variant
    by_lse = variant.join == "lse"

    def split(call: Call) -> list[Part]:
        end = max(1, call.mask.last_visible())
        return [Part(keys=keys) for keys in bounds(end, size)]

    made = chunked(
        inner,
        LABEL,
        split=split,
        join=_join_by_lse if by_lse else _join_by_sum,
        refuses=lambda call, direction: _refuses(inner, direction),
        needs_lse=by_lse,
        footprint=_footprint(inner, size) if by_lse else UNKNOWN,
    )
    lse: Lse = inner.support.lse if by_lse else "no"
    backward = inner.support.backward and (not by_lse or lse == "differentiable")
    return replace(made, support=replace(inner.support, lse=lse, backward=backward))


def _footprint(inner: Implementation, size: int) -> Footprint:
    """A part above the running output and log-sum-exp; or the merging of two: five outputs and 9½ numbers a query."""
    peak = inner.footprint.peak_lse
    if peak is None:
        return UNKNOWN

    def running(w: Workload) -> int:
        first, *others = (peak(replace(w, kv_len=keys)) for keys in sizes(w.kv_len, size))
        later = [output(w) + per_query(w) + part for part in others]
        return max(first, *later, 5 * output(w) + 19 * per_query(w) // 2) if later else first

    return Footprint(peak=running)


def _refuses(inner: Implementation, direction: str) -> str | None:
    name, join, lse = inner.variant.name, inner.variant.join, inner.support.lse
    if join == "none":
        return f"{name} cannot be joined from parts of its keys"
    if join == "lse" and lse == "no":
        return "parts are joined by their log-sum-exp, which it does not return"
    if join == "lse" and lse == "value" and direction != "fwd":
        return "its log-sum-exp is a value without a gradient, so gradients through the join would be wrong"
    return None


def _join_by_lse(parts: Iterator[Output]) -> Output:
    """Keeps one running result, in float32 at least, and no part while the next is computed: memory does not grow with
    the number of parts."""
    first = next(parts)
    dtype, out, lse = first.out.dtype, _wide(first.out), _present(first.lse)
    del first
    while (part := next(parts, None)) is not None:
        out, lse = merge_by_lse([out, part.out], [lse, _present(part.lse)])
        del part
    return Output(out.to(dtype), lse)


def _join_by_sum(parts: Iterator[Output]) -> Output:
    first = next(parts)
    dtype, out = first.out.dtype, _wide(first.out)
    del first
    while (part := next(parts, None)) is not None:
        out = out + part.out
        del part
    return Output(out.to(dtype))


def _wide(out: Tensor) -> Tensor:
    return out.to(torch.promote_types(out.dtype, torch.float32))


def _present(lse: Tensor | None) -> Tensor:
    if lse is None:
        raise ValueError("a part returned no log-sum-exp although it was asked for one; see Support.lse")
    return lse


TRANSFORM = Transform(
    label=LABEL,
    doc="keys C at a time, joined by log-sum-exp or by sum",
    aims_at="memory",
    wrap=_wrap,
    applied=was_cut(LABEL),
    example="8",
)
