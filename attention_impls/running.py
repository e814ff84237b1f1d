"""Softmax sums that grow by pieces of the keys: what the exact forms keep, and what one more piece does to it.

Over the keys j seen so far, with scores s_j, values v_j and the anchor a = max_j s_j, a query keeps

    total = Σ_j e^(s_j − a),    values = Σ_j e^(s_j − a) · v_j,    so that out = values / total, lse = a + ln total.

A piece that raises the anchor to a' multiplies both sums by e^(a − a') before its own terms are added. The
anchor shifts exponents only: no gradient flows through it. Everything is held in float32 at least, and folded:
the query heads that share a key/value head lie side by side as rows, so that no key is repeated.
Source: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", arXiv 1805.02867.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from attention_impls.call import Call, hide, wide
from attention_impls.contract import Output

Piece = tuple[Tensor, Tensor, Tensor | None]
"""Keys [B, G, C, D], their values [B, G, C, E] and what is visible of them [1|B, 1|H, R, C], None when all is."""


class Sums(NamedTuple):
    """values [..., R, E], total and anchor [..., R, 1]; the anchor is -inf while a row has seen no key."""

    values: Tensor
    total: Tensor
    anchor: Tensor


def nothing(queries: Tensor, size: int) -> Sums:
    """The sums over no key, for queries [..., R, D] and values of `size`; gradients of zero flow through them."""
    zero = queries[..., :0].sum(-1, keepdim=True)
    return Sums(zero.expand(*zero.shape[:-1], size), zero, torch.full_like(zero, float("-inf")))


def absorb(sums: Sums, scores: Tensor, values: Tensor) -> Sums:
    """The sums after one more piece: scores [..., R, C], -inf where hidden, and values [..., C, E]."""
    anchor = torch.maximum(sums.anchor, scores.detach().amax(-1, keepdim=True))
    origin = finite(anchor)
    weights, shrink = (scores - origin).exp(), (sums.anchor - origin).exp()
    return Sums(
        sums.values * shrink + weights @ values,
        sums.total * shrink + weights.sum(-1, keepdim=True),
        anchor,
    )


def closed(sums: Sums) -> tuple[Tensor, Tensor]:
    """out [..., R, E] and lse [..., R, 1]; rows that saw no key give 0 and -inf, and gradients of zero."""
    unseen = torch.isneginf(sums.anchor)
    total = sums.total.masked_fill(unseen, 1.0)
    lse = (finite(sums.anchor) + total.log()).masked_fill(unseen, float("-inf"))
    return sums.values / total, lse


def finite(anchor: Tensor) -> Tensor:
    """The anchor with 0 for -inf, so that e^(-inf − anchor) is 0 and not NaN."""
    return anchor.masked_fill(torch.isneginf(anchor), 0.0)


def fold(x: Tensor, groups: int) -> Tensor:
    """[B, H, R, X] -> wide [B, G, H/G·R, X]: the rows of the query heads that share a key/value head, in turn."""
    batch, heads, rows, size = x.shape
    return wide(x).reshape(batch, groups, heads // groups * rows, size)


def unfold(x: Tensor, heads: int) -> Tensor:
    """[B, G, H/G·R, X] -> [B, H, R, X]."""
    batch, groups, rows, size = x.shape
    return x.reshape(batch, heads, groups * rows // heads, size)


def folded_scores(queries: Tensor, keys: Tensor, visible: Tensor | None, heads: int) -> Tensor:
    """Scores [B, G, H/G·R, C] of folded, scaled queries against keys [B, G, C, D]; -inf where hidden."""
    scores = queries @ wide(keys).mT
    if visible is None:
        return scores
    return hide(unfold(scores, heads), visible).reshape(scores.shape)


def over_pieces(call: Call, pieces: Iterable[Piece]) -> tuple[Tensor, Tensor]:
    """out [B, H, I, E] and lse [B, H, I] of all queries of a call, one piece of the keys after the other."""
    heads = call.q.shape[1]
    queries = fold(call.q, call.k.shape[1]) * call.scale
    sums = nothing(queries, call.v.shape[3])
    for keys, values, visible in pieces:
        sums = absorb(sums, folded_scores(queries, keys, visible, heads), wide(values))
    return answer(sums, call)


def answer(sums: Sums, call: Call) -> tuple[Tensor, Tensor]:
    """Folded sums as out [B, H, R, E] in q's dtype and lse [B, H, R]."""
    out, lse = closed(sums)
    heads = call.q.shape[1]
    return unfold(out, heads).to(call.q.dtype), unfold(lse, heads).squeeze(-1)


def output(found: tuple[Tensor, Tensor], lse: bool) -> Output:
    """What a run returns: the log-sum-exp only where it was asked for."""
    return Output(found[0], found[1] if lse else None)
