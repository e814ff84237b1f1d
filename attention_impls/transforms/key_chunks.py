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
from attention_impls.chunking import Part, bounds, chunk_size, chunked, was_cut
from attention_impls.contract import Implementation, Lse, Output, Transform

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
    )
    lse: Lse = inner.support.lse if by_lse else "no"
    backward = inner.support.backward and (not by_lse or lse == "differentiable")
    return replace(made, support=replace(inner.support, lse=lse, backward=backward))


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
    """Keeps one running result, in float32 at least, so that memory does not grow with the number of parts."""
    first = next(parts)
    out, lse = _wide(first.out), _present(first.lse)
    for part in parts:
        out, lse = merge_by_lse([out, part.out], [lse, _present(part.lse)])
    return Output(out.to(first.out.dtype), lse)


def _join_by_sum(parts: Iterator[Output]) -> Output:
    first = next(parts)
    out = _wide(first.out)
    for part in parts:
        out = out + part.out
    return Output(out.to(first.out.dtype))


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
