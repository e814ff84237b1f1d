"""softmax.tiles: online softmax over tiles with a backward of its own, in plain torch.

Exact. No score outlives its tile: the forward keeps a running maximum, sum and output per row, the
backward saves q, k, v, out and the LSE and computes every tile of probabilities again, with
D = rowsum(dO ⊙ O) in place of the row sums of the softmax's derivative. The LSE is an output with a
gradient of its own, so that results over disjoint keys can be joined. Half precision is accumulated in float32.

Sources: Milakov & Gimelshein 2018, arXiv 1805.02867 (online softmax); Dao et al. 2022, arXiv 2205.14135
and Dao 2023, arXiv 2307.08691 (tiles and the backward).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Output, Run, Support
from attention_impls.tiling import Band, Tile, bands, checked
from attention_impls.variants.scores.softmax import SOFTMAX


def tiles(block: int = 128) -> Implementation:
    """softmax by tiles of `block` queries × `block` keys. Raises ValueError for a block below 1."""
    checked("block", block)

    def prepare(call: Call, lse: bool) -> Run:
        plan = bands(call.mask.simplified().to(call.q.device), block, block)

        def run(call: Call) -> Output:
            out, total = _Tiled.apply(call.q, call.k, call.v, call.scale, plan)  # type: ignore[no-untyped-call]
            return Output(out, total if lse else None)

        return run

    return Implementation(
        "tiles", SOFTMAX, prepare, Support(lse="differentiable"), configure=tiles, growth=Growth(bytes=1)
    )


class _Tiled(torch.autograd.Function):
    """(q [B, H, I, D], k [B, G, J, D], v [B, G, J, E]) -> out [B, H, I, E], lse [B, H, I]."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, plan: tuple[Band, ...]
    ) -> tuple[Tensor, Tensor]:
        out = q.new_empty((*q.shape[:3], v.shape[3]))
        lse = q.new_empty(q.shape[:3], dtype=_wide(q))
        for band in plan:
            out[:, :, band.lo : band.hi], lse[:, :, band.lo : band.hi] = _forward(q, k, v, scale, band)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.plan = scale, plan
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        d_out = torch.zeros_like(out) if d_out is None else d_out
        wanted = ctx.needs_input_grad[:3]
        sums = [torch.zeros_like(t, dtype=_wide(t)) if w else None for t, w in zip((q, k, v), wanted, strict=True)]
        for band in ctx.plan:
            _backward(q, k, v, out, lse, d_out, d_lse, ctx.scale, band, sums)
        grads = [None if s is None else s.to(q.dtype) for s in sums]
        return (*grads, None, None)


def _wide(t: Tensor) -> torch.dtype:
    return torch.promote_types(t.dtype, torch.float32)


def _folded(x: Tensor, groups: int, lo: int, hi: int) -> Tensor:
    """Rows lo..hi of [B, H, I, X] as [B, G, H/G·R, X]: the queries that share keys side by side, in wide numbers."""
    rows = x[:, :, lo:hi].to(_wide(x))
    return rows.reshape(x.shape[0], groups, x.shape[1] // groups * (hi - lo), x.shape[3])


def _scores(q: Tensor, k: Tensor, heads: int, visible: Tensor | None) -> Tensor:
    """Scores [B, G, H/G·R, C] of folded, scaled queries; -inf where hidden."""
    s = q @ k.mT
    if visible is not None:
        s.view(s.shape[0], heads, visible.shape[2], s.shape[3]).masked_fill_(~visible, float("-inf"))
    return s


def _keys(x: Tensor, tile: Tile) -> Tensor:
    return x[:, :, tile.lo : tile.hi].to(_wide(x))


def _forward(q: Tensor, k: Tensor, v: Tensor, scale: float, band: Band) -> tuple[Tensor, Tensor]:
    """One band's out [B, H, R, E] and lse [B, H, R]; rows without a key give 0 and -inf."""
    heads, rows = q.shape[1], band.hi - band.lo
    mine = _folded(q, k.shape[1], band.lo, band.hi) * scale
    top = mine.new_full((*mine.shape[:3], 1), float("-inf"))
    total, acc = torch.zeros_like(top), mine.new_zeros((*mine.shape[:3], v.shape[3]))
    for tile in band.tiles:
        s = _scores(mine, _keys(k, tile), heads, tile.visible)
        higher = torch.maximum(top, s.amax(-1, keepdim=True))
        anchor = higher.masked_fill(torch.isneginf(higher), 0.0)  # keeps exp(-inf - -inf) from being NaN
        p, shrink = s.sub_(anchor).exp_(), top.sub_(anchor).exp_()
        total = total.mul_(shrink).add_(p.sum(-1, keepdim=True))
        acc = acc.mul_(shrink).add_(p @ _keys(v, tile))
        top = higher
    lse = (top + total.log()).view(q.shape[0], heads, rows)
    acc = acc.div_(total.masked_fill_(total == 0, 1.0))
    return acc.view(q.shape[0], heads, rows, v.shape[3]).to(q.dtype), lse


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None,
    scale: float,
    band: Band,
    sums: list[Tensor | None],
) -> None:
    """Adds one band's share to `sums`, the gradients of q, k and v (None where nobody asks)."""
    dq, dk, dv = sums
    groups, heads, rows = k.shape[1], q.shape[1], slice(band.lo, band.hi)
    mine, upstream = _folded(q, groups, band.lo, band.hi) * scale, _folded(d_out, groups, band.lo, band.hi)
    kept = lse[:, :, rows].reshape(*mine.shape[:3], 1)
    kept = kept.masked_fill(torch.isneginf(kept), 0.0)
    # What every score of a row takes off dP: D, less the gradient that reaches the LSE directly.
    shift = (upstream * _folded(out, groups, band.lo, band.hi)).sum(-1, keepdim=True)
    if d_lse is not None:
        shift = shift - d_lse[:, :, rows].reshape(shift.shape)
    for tile in band.tiles:
        keys = _keys(k, tile)
        p = _scores(mine, keys, heads, tile.visible).sub_(kept).exp_()
        if dv is not None:
            dv[:, :, tile.lo : tile.hi] += p.mT @ upstream
        if dq is None and dk is None:
            continue
        ds = (upstream @ _keys(v, tile).mT).sub_(shift).mul_(p)
        if dq is not None:
            dq[:, :, rows] += (ds @ keys).mul_(scale).view(q.shape[0], heads, band.hi - band.lo, q.shape[3])
        if dk is not None:
            dk[:, :, tile.lo : tile.hi] += ds.mT @ mine


IMPLEMENTATIONS = [tiles()]
