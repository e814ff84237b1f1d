"""softmax.rabe_staats: query chunks × key chunks, each summarised by (Σ e·v, Σ e, max) and merged.

Exact. A chunk's summary is a checkpoint: nothing of its scores is kept for the backward, which
computes it again. The running maximum only shifts exponents, so no gradient flows through it, and
merging two summaries keeps one number a row. Scores alive at once: q_chunk × k_chunk a head. Half
precision is summarised in float32. The paper's own code takes chunks of 1024 and 4096, meant for
lengths far beyond them.

Source: Rabe & Staats 2021, "Self-attention Does Not Need O(n²) Memory", arXiv 2112.05682.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call, hide, repeat_heads
from attention_impls.contract import Growth, Implementation, Output, Run, Support
from attention_impls.tiling import Band, Tile, bands, checked
from attention_impls.variants.scores.softmax import SOFTMAX


class Summary(NamedTuple):
    """What a set of keys leaves behind for its rows: Σ e·v [B, H, R, E], Σ e and the maximum [B, H, R, 1]."""

    values: Tensor
    total: Tensor
    top: Tensor


def rabe_staats(q_chunk: int = 256, k_chunk: int = 512) -> Implementation:
    """softmax by chunks of q_chunk queries × k_chunk keys. Raises ValueError for a chunk below 1."""
    checked("q_chunk", q_chunk)
    checked("k_chunk", k_chunk)

    def prepare(call: Call, lse: bool) -> Run:
        plan = bands(call.mask.simplified().to(call.q.device), q_chunk, k_chunk)

        def run(call: Call) -> Output:
            parts = [_band(call, band) for band in plan]
            out = torch.cat([out for out, _ in parts], 2)
            return Output(out, torch.cat([total for _, total in parts], 2) if lse else None)

        return run

    return Implementation(
        "rabe_staats", SOFTMAX, prepare, Support(lse="differentiable"), configure=rabe_staats, growth=Growth(bytes=1)
    )


def _band(call: Call, band: Band) -> tuple[Tensor, Tensor]:
    """One query chunk's out [B, H, R, E] and lse [B, H, R]; rows without a key give 0 and -inf."""
    q = call.q[:, :, band.lo : band.hi]
    if not band.tiles:
        return _blind(q, call.v)
    merged = reduce(_merge, (_remembered(call, q, tile) for tile in band.tiles))
    unseen = torch.isneginf(merged.top)
    total = merged.total.masked_fill(unseen, 1.0)
    lse = (merged.top.masked_fill(unseen, 0.0) + total.log()).masked_fill(unseen, float("-inf"))
    return (merged.values / total).to(q.dtype), lse.squeeze(-1)


def _blind(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that see no key at all: zeros through which zero gradients flow, and -inf."""
    nothing = q.sum(-1, keepdim=True) * 0.0
    lse = torch.full(q.shape[:3], float("-inf"), dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    return nothing.expand(*q.shape[:3], v.shape[3]), lse


def _remembered(call: Call, q: Tensor, tile: Tile) -> Summary:
    """A chunk's summary, computed again in the backward; it draws nothing at random, so no state is stashed."""
    k, v = call.k[:, :, tile.lo : tile.hi], call.v[:, :, tile.lo : tile.hi]
    summary: Summary = checkpoint(
        _summary, q, k, v, call.scale, tile.visible, use_reentrant=False, preserve_rng_state=False
    )
    return summary


def _summary(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor | None) -> Summary:
    wide, heads = torch.promote_types(q.dtype, torch.float32), q.shape[1]
    scores = hide(q.to(wide) * scale @ repeat_heads(k.to(wide), heads).mT, visible)
    top = scores.detach().amax(-1, keepdim=True)
    weights = (scores - _finite(top)).exp_()
    return Summary(weights @ repeat_heads(v.to(wide), heads), weights.sum(-1, keepdim=True), top)


def _merge(one: Summary, other: Summary) -> Summary:
    top = torch.maximum(one.top, other.top)
    a, b = (one.top - _finite(top)).exp(), (other.top - _finite(top)).exp()
    return Summary(one.values * a + other.values * b, one.total * a + other.total * b, top)


def _finite(top: Tensor) -> Tensor:
    return top.masked_fill(torch.isneginf(top), 0.0)


IMPLEMENTATIONS = [rabe_staats()]
