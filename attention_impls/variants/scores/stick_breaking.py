"""Stick-breaking attention: A_ij = β_ij Π_{j<l<i} (1 − β_il), β = σ(scale · q kᵀ): the nearest key breaks first.

Every query has a stick of length 1; going back from the key before it, each key takes the share β of what is left.
No position encoding is needed, and rows sum to at most 1. A query does not see its own key, as in the paper; hidden
keys take nothing. Causal only: the order of keys is what it is about. What a part of the keys gives depends on what
nearer keys left: parts cannot be joined. Source: Tan et al. 2024, "Scaling Stick-Breaking Attention", arXiv
2410.17980. With β = 1 everywhere each query copies the key before it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call, wide
from attention_impls.contract import MASK_WORDS, Implementation, Output, Run, Support, Variant
from attention_impls.makers import patterned
from attention_impls.scored import dot, shown
from attention_impls.scored_tiles import tile_of
from attention_impls.tiling import Band, Tile, bands, checked


def _before(i: Tensor, j: Tensor) -> Tensor:
    return j < i


def _weights(call: Call, rows: Tensor) -> Tensor:
    """Key by key from the last to the first: weight = left · β, left ← left · (1 − β)."""
    logits = call.q[:, :, rows] @ call.k.mT * call.scale
    share, rest = torch.sigmoid(logits), torch.sigmoid(-logits)  # 1 − β would lose a small rest
    visible = patterned(call, _before).mask.visible(rows)
    assert visible is not None  # a pattern hides something
    seen = visible.expand_as(logits)
    left, columns = torch.ones_like(logits[..., 0]), []
    for j in reversed(range(logits.shape[-1])):
        columns.append((left * share[..., j]).masked_fill(~seen[..., j], 0.0))
        left = torch.where(seen[..., j], left * rest[..., j], left)
    return torch.stack(columns[::-1], -1)


def _not_causal(call: Call) -> str | None:
    return None if call.mask.causal else "stick_breaking is causal only: sticks break from the nearest key; add causal"


STICK_BREAKING = Variant(
    "stick_breaking",
    weights=_weights,
    masks=MASK_WORDS - {"full"},
    row_stochastic=False,
    pattern=_before,
    why_not=_not_causal,
    paper="Tan et al. 2024, arXiv 2410.17980",
    formula="A_ij = β_ij Π_{j<l<i} (1 − β_il), β = σ(scale · q kᵀ), scale = D^-1/2",
    cost="time O(I·J·D); memory O(I·J) materialised, O(I·J/block + I) tiled",
)


def _broken(logits: Tensor, visible: Tensor | None, left: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights [B, H, R, C], and the logarithm of what is left after these keys [B, H, R, 1]; `left` before them."""
    kept = shown(logsigmoid(-logits), visible)
    gone = kept.flip(-1).cumsum(-1).flip(-1)  # what this key and those after it take, as a logarithm
    total = gone[..., :1]
    after = gone - kept
    if left is not None:
        after, total = after + left, total + left
    return shown((logsigmoid(logits) + after).exp(), visible), total


def _naive(call: Call, lse: bool) -> Run:
    """Every score in memory; products as sums of logarithms."""
    visible = patterned(call, _before).mask.simplified().to(call.q.device).visible()

    def run(call: Call) -> Output:
        whole = call.expanded().map(wide)
        return Output((_broken(wide(dot(whole)), visible, None)[0] @ whole.v).to(call.q.dtype))

    return run


def tiled(block: int = 128) -> Implementation:
    """Tiles of `block` queries × `block` keys, the nearest keys first, what is left of each stick handed on.

    A tile is computed again in the backward. Raises ValueError for a block below 1.
    """
    checked("block", block)

    def prepare(call: Call, lse: bool) -> Run:
        plan = bands(patterned(call, _before).mask.simplified().to(call.q.device), block, block)
        return lambda call: Output(torch.cat([_band(call, band) for band in plan], 2))

    return Implementation("tiled", STICK_BREAKING, prepare, Support(), configure=tiled)


def _band(call: Call, band: Band) -> Tensor:
    q = wide(call.q[:, :, band.lo : band.hi])
    out = (q[..., :1] * 0.0).expand(*q.shape[:3], call.v.shape[3])  # rows without a key: zeros, and zero gradients
    left = torch.zeros_like(q[..., :1])
    for tile in reversed(band.tiles):
        more, left = checkpoint(  # nothing random inside: no random state need be kept
            partial(_attend, band, tile), call, left, use_reentrant=False, preserve_rng_state=False
        )
        out = out + more
    return out.to(call.q.dtype)


def _attend(band: Band, tile: Tile, call: Call, left: Tensor) -> tuple[Tensor, Tensor]:
    part = tile_of(call, band, tile)
    weights, left = _broken(wide(dot(part)), tile.visible, left)
    return weights @ part.v, left


IMPLEMENTATIONS = [Implementation("naive", STICK_BREAKING, _naive), tiled()]
