"""CoPE, contextual positions: a query counts the keys that matter to it, and the count is its distance.

l_ij = scale · q_i·k_j,  p_ij = min(Σ_{t=j..i} σ(l_it), P − 1) over the keys that i sees,  L_ij = l_ij + q_i·e(p_ij),
e between whole numbers being the mean of its neighbours by nearness; A = softmax(L). embedding [P, D] is shared by all
heads; option positions: P. As published, gates see the scaled logits and e meets the unscaled query. Causal only. Each
weight depends on the keys between: parts of the keys cannot be joined. With e = 0 it is `softmax`.
`naive` has every count in memory. `tiled` goes from each block's nearest keys to the farthest and hands the count on,
beside a running softmax; a tile is computed again in the backward.
Source: Golovneva et al. 2024, "Contextual Position Encoding", arXiv 2405.18719.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_impls.biased import Seen, whole
from attention_impls.call import Call, hide, lse_rows, wide
from attention_impls.contract import MASK_WORDS, Growth, Implementation, Output, Parameter, Run, Support, Variant
from attention_impls.makers import softmax_of
from attention_impls.scored import shown
from attention_impls.scored_tiles import tile_of
from attention_impls.tiling import Band, Tile, bands, checked


def _logits(positions: int, call: Call, rows: Tensor) -> Tensor:
    """Key by key from the last to the first, counting; e(p) as a sum of tents, one around each whole number."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    q = call.q[:, :, rows]
    plain = (q @ call.k.mT * call.scale).to(wide)
    visible = call.mask.visible(rows)
    assert visible is not None  # causal, so there is a mask
    seen, count, columns = visible.expand_as(plain), torch.zeros_like(plain[..., 0]), []
    scores = (q @ call.parameters["embedding"].mT).to(wide)  # [B, H, R, P]
    numbers = torch.arange(positions, device=q.device)
    for j in reversed(range(call.k.shape[2])):
        count = count + torch.sigmoid(plain[..., j]) * seen[..., j]
        tents = (1 - (count.clamp(max=positions - 1)[..., None] - numbers).abs()).clamp(min=0)
        columns.append(plain[..., j] + (tents * scores).sum(-1))
    return torch.stack(columns[::-1], -1)


def _not_causal(call: Call) -> str | None:
    return None if call.mask.causal else "cope is causal only: it counts from a key to a later query; add causal"


def _embedded(positions: int, part: Call, count: Tensor) -> Tensor:
    """q·e(p) of counts p [B, H, R, C], between the two whole numbers next to each."""
    count = count.clamp(max=positions - 1)
    below = count.detach().floor()
    scores, at = wide(part.q @ part.parameters["embedding"].mT), below.long()
    near, far = scores.gather(-1, at), scores.gather(-1, (at + 1).clamp(max=positions - 1))
    return torch.lerp(near, far, count - below)


def _naive(positions: int, call: Call, seen: Seen, lse: bool) -> Output:
    plain = wide(call.q @ call.k.mT * call.scale)  # a count in half precision stands still at large numbers
    count = shown(torch.sigmoid(plain), seen.visible).flip(-1).cumsum(-1).flip(-1)
    logits = hide(plain + _embedded(positions, call, count), seen.visible)
    return Output(seen.softmax(logits) @ call.v, lse_rows(logits) if lse else None)


def tiled(variant: Variant, positions: int, block: int = 128) -> Implementation:
    """Tiles of `block` queries × `block` keys. Raises ValueError for a block below 1."""
    checked("block", block)

    def configure(block: int = 128) -> Implementation:
        return tiled(variant, positions, block)

    def prepare(call: Call, lse: bool) -> Run:
        plan = bands(call.mask.simplified().to(call.q.device), block, block)

        def run(call: Call) -> Output:
            outs, lses = zip(*(_band(positions, call, band) for band in plan), strict=True)
            return Output(torch.cat(outs, 2).to(call.q.dtype), torch.cat(lses, 2) if lse else None)

        return run

    return Implementation(
        "tiled", variant, prepare, Support(lse="differentiable"), configure=configure, growth=Growth(bytes=1)
    )


class _Running(NamedTuple):
    """After some tiles: what was counted, the largest logit, the sum and the weighted values about it."""

    counted: Tensor
    top: Tensor
    total: Tensor
    acc: Tensor


def _band(positions: int, call: Call, band: Band) -> tuple[Tensor, Tensor]:
    nothing = wide(call.q[:, :, band.lo : band.hi, :1]) * 0.0  # of q, so that rows without a key have a gradient
    acc = nothing.expand(*nothing.shape[:3], call.v.shape[3])
    state = _Running(nothing, torch.full_like(nothing, float("-inf")).detach(), nothing, acc)
    for tile in reversed(band.tiles):
        state = checkpoint(  # nothing random inside: no random state need be kept
            partial(_farther, positions, band, tile), call, state, use_reentrant=False, preserve_rng_state=False
        )
    empty = state.total == 0
    total = state.total.masked_fill(empty, 1.0)
    lse = (state.top + total.log()).masked_fill(empty, float("-inf"))
    return state.acc / total, lse.squeeze(-1)


def _farther(positions: int, band: Band, tile: Tile, call: Call, state: _Running) -> _Running:
    """One tile more. No gradient goes through the largest logit: what it does cancels."""
    part = tile_of(call, band, tile)
    plain = wide(part.q @ part.k.mT * part.scale)
    count = state.counted + shown(torch.sigmoid(plain), tile.visible).flip(-1).cumsum(-1).flip(-1)
    logits = hide(plain + _embedded(positions, part, count), tile.visible)
    top = torch.maximum(state.top, logits.detach().amax(-1, keepdim=True))
    anchor = top.masked_fill(torch.isneginf(top), 0.0)  # keeps exp(-inf - -inf) from being NaN
    powers, shrink = (logits - anchor).exp(), (state.top - anchor).exp()
    total = state.total * shrink + powers.sum(-1, keepdim=True)
    return _Running(count[..., :1], top, total, state.acc * shrink + powers @ part.v)


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal, so that its product with a query has unit variance."""
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])


def implementations(positions: int = 64) -> list[Implementation]:
    """CoPE with `positions` embeddings. Raises ValueError for fewer than 2, where every count is the same."""
    if positions < 2:
        raise ValueError(f"option positions must be at least 2: with one, every count is 0; got {positions}")
    variant = softmax_of(
        "cope",
        partial(_logits, positions),
        parameters={"embedding": Parameter("P D", "weight", draw=_draw, sizes={"P": positions})},
        couples=frozenset({"keys"}),
        masks=MASK_WORDS - {"full"},
        why_not=_not_causal,
        paper="Golovneva et al. 2024, arXiv 2405.18719",
        formula="A = softmax(l_ij + q_i·e(p_ij)), p_ij = min(Σ_{t=j..i} σ(l_it), P − 1), l = scale · q kᵀ",
        cost="time O(I·J·D + I·P·D); memory O(H·I·(J+P)) naive, O(I) and one tile tiled",
    )
    return [whole(variant, "naive", partial(_naive, positions)), tiled(variant, positions)]
