"""softmax.flash1: FlashAttention as first published, keys in the outer loop and queries in the inner one.

Exact. For every block of keys the output of every block of queries is read, corrected and written back, divided
by the sum so far each time; the maximum m and the sum l of every row are kept beside it. `tiles` has the order of
the second paper: queries outside, one division at the end, one number a row. Here two numbers a row are kept, and
the backward uses both: P = e^(s − m) / l, computed again block by block, with D = rowsum(dO ⊙ O).
No score outlives its block. Half precision is accumulated in float32.

Source: Dao, Fu, Ermon, Rudra & Ré 2022, arXiv 2205.14135, algorithms 1 (forward) and 4 (backward).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_impls.call import Call, wide
from attention_impls.contract import Growth, Implementation, Output, Run, Support
from attention_impls.mask import Mask
from attention_impls.running import finite, fold, folded_scores, unfold
from attention_impls.tiling import bands, checked
from attention_impls.variants.scores.softmax import SOFTMAX


class Block(NamedTuple):
    """Query rows and key columns of one block of scores, and what is visible of it, None when all is."""

    rows: slice
    keys: slice
    visible: Tensor | None


def flash1(block: int = 128) -> Implementation:
    """softmax by blocks of `block` keys × `block` queries. Raises ValueError for a block below 1."""
    checked("block", block)

    def prepare(call: Call, lse: bool) -> Run:
        plan = _by_keys(call.mask.simplified().to(call.q.device), block)

        def run(call: Call) -> Output:
            out, total = _Flash.apply(call.q, call.k, call.v, call.scale, plan)  # type: ignore[no-untyped-call]
            return Output(out, total if lse else None)

        return run

    return Implementation(
        "flash1", SOFTMAX, prepare, Support(lse="differentiable"), configure=flash1, growth=Growth(bytes=1)
    )


def _by_keys(mask: Mask, block: int) -> list[Block]:
    """The blocks of a mask in which something is visible, all of one block of keys before those of the next."""
    found = [(band, tile) for band in bands(mask, block, block) for tile in band.tiles]
    found.sort(key=lambda pair: (pair[1].lo, pair[0].lo))
    return [Block(slice(band.lo, band.hi), slice(tile.lo, tile.hi), tile.visible) for band, tile in found]


class _Flash(torch.autograd.Function):
    """(q [B, H, I, D], k [B, G, J, D], v [B, G, J, E]) -> out [B, H, I, E], lse [B, H, I]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, plan: list[Block]) -> tuple[Tensor, Tensor]:
        out = torch.zeros((*q.shape[:3], v.shape[3]), dtype=wide(q[..., :0]).dtype, device=q.device)
        top = torch.full_like(out[..., :1], float("-inf"))
        total = torch.zeros_like(top)
        for block in plan:
            _correct(block, fold(q[:, :, block.rows], k.shape[1]) * scale, k, v, (out, top, total))
        rounded, lse = out.to(q.dtype), (top + total.log()).squeeze(-1)
        ctx.save_for_backward(q, k, v, rounded, top, total)
        ctx.scale, ctx.plan = scale, plan
        ctx.set_materialize_grads(False)
        return rounded, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, top, total = ctx.saved_tensors
        d_out = torch.zeros_like(out) if d_out is None else d_out
        # What every score of a row takes off dP: D, less the gradient that reaches the lse directly.
        shift = (wide(d_out) * wide(out)).sum(-1, keepdim=True)
        if d_lse is not None:
            shift = shift - d_lse.unsqueeze(-1)
        sums = [torch.zeros(t.shape, dtype=shift.dtype, device=t.device) for t in (q, k, v)]
        for block in ctx.plan:
            _add_gradients(block, ctx.scale, (q, k, v), (d_out, shift, top, total), sums)
        grads = [s.to(q.dtype) if w else None for s, w in zip(sums, ctx.needs_input_grad[:3], strict=True)]
        return (*grads, None, None)


def _correct(block: Block, queries: Tensor, k: Tensor, v: Tensor, kept: tuple[Tensor, Tensor, Tensor]) -> None:
    """Takes one block of keys into the output, maximum and sum of one block of queries, where they lie."""
    out, top, total = (t[:, :, block.rows] for t in kept)
    heads = out.shape[1]
    scores = folded_scores(queries, k[:, :, block.keys], block.visible, heads)
    higher = torch.maximum(top, unfold(scores.amax(-1, keepdim=True), heads))
    weights = (scores - fold(finite(higher), k.shape[1])).exp()
    before = total * (top - finite(higher)).exp()
    after = before + unfold(weights.sum(-1, keepdim=True), heads)
    added = unfold(weights @ wide(v[:, :, block.keys]), heads)
    out.copy_((out * before + added) / after.masked_fill(after == 0, 1.0))
    top.copy_(higher)
    total.copy_(after)


def _add_gradients(
    block: Block,
    scale: float,
    inputs: tuple[Tensor, Tensor, Tensor],
    rows: tuple[Tensor, Tensor, Tensor, Tensor],
    sums: list[Tensor],
) -> None:
    """Adds one block's share to the gradients of q, k and v; rows: dO, D, m and l of all queries."""
    q, k, v = inputs
    groups, heads = k.shape[1], q.shape[1]
    queries = fold(q[:, :, block.rows], groups) * scale
    upstream, shift, top, total = (fold(t[:, :, block.rows], groups) for t in rows)
    keys, values = wide(k[:, :, block.keys]), wide(v[:, :, block.keys])
    scores = folded_scores(queries, keys, block.visible, heads)
    weights = (scores - finite(top)).exp() / total.masked_fill(total == 0, 1.0)
    d_scores = weights * (upstream @ values.mT - shift)
    dq, dk, dv = sums
    dq[:, :, block.rows] += unfold(d_scores @ keys, heads) * scale
    dk[:, :, block.keys] += d_scores.mT @ queries
    dv[:, :, block.keys] += weights.mT @ upstream


IMPLEMENTATIONS = [flash1()]
