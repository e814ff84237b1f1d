"""α-entmax attention: rows are the p of the simplex that maximise p·L + H_α(p), L = scale · q kᵀ, H_α Tsallis' entropy.

p_j = [(α − 1) L_j − τ]₊^(1/(α − 1)), τ such that the row sums to 1: keys below a threshold weigh exactly 0. α = 1 is
`softmax`, 1.5 is entmax-1.5, 2 (the default) sparsemax, the projection of L onto the simplex. Hidden keys weigh 0;
a query that sees none gives zeros. Sources: Martins & Astudillo 2016, arXiv 1602.02068 (sparsemax); Peters, Niculae,
Martins 2019, arXiv 1905.05702 (entmax, both algorithms); Correia et al. 2019, arXiv 1909.00015 (in attention, α ≥ 1).

The definition halves the interval of τ. `sorted` (α = 1.5 and 2) has τ in closed form from the sorted row. `bisection`
takes tangents beside halvings, a chunk of queries at a time, and has the Jacobian's product as its backward: with
g = p^(2 − α) on the support, dL = g ⊙ (dp − Σ g dp / Σ g).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call, hide, repeat_heads, softmax_rows, wide
from attention_impls.contract import Growth, Implementation, Output, Run, Support, Variant
from attention_impls.makers import of
from attention_impls.scored_tiles import tile_of
from attention_impls.tiling import Band, bands, checked

Normalise = Callable[[Tensor], Tensor]
"""Logits [..., J], -inf where hidden, in float32 at least -> weights; a row of -inf gives zeros."""

HALVINGS = 64  # of the definition: more than the digits of float64


def implementations(alpha: float = 2.0) -> list[Implementation]:
    """α-entmax attention for α in [1, 2]. Raises ValueError for other values."""
    if not 1.0 <= alpha <= 2.0:
        raise ValueError(f"option alpha of entmax must lie in [1, 2]; got {alpha}")
    return of_alpha("entmax", alpha)


def of_alpha(name: str, alpha: float) -> list[Implementation]:
    """The implementations of a variant called `name`; `sorted` is there where τ has a closed form."""

    def weights(call: Call, rows: Tensor) -> Tensor:
        logits = hide(call.q[:, :, rows] @ call.k.mT * call.scale, call.mask.visible(rows))
        return (softmax_rows(wide(logits)) if alpha == 1.0 else _halved(alpha, wide(logits))).to(call.q.dtype)

    variant = Variant(
        name,
        weights=weights,
        paper="Martins & Astudillo 2016, arXiv 1602.02068; Peters, Niculae, Martins 2019, arXiv 1905.05702",
        formula=f"A_ij = [(α − 1) L_ij − τ_i]₊^(1/(α − 1)), rows sum to 1, L = scale · q kᵀ, α = {alpha:g}",
        cost="time O(I·J·(D + log J)) sorted, O(I·J·(D + 30)) bisection; memory O(I·J), O(block·J) bisection",
    )
    closed = {1.5: _threshold_of_squares, 2.0: _threshold_of_sums}.get(alpha)
    made = [bisection(variant, alpha)]
    return made if closed is None else [*made, of(variant, partial(_sorted, alpha, closed), name="sorted")]


def _anchored(alpha: float, logits: Tensor) -> tuple[Tensor, Tensor]:
    """(α − 1) L less its row's maximum, with zeros in rows of -inf, and which rows those are [..., 1]."""
    empty = torch.isneginf(logits).all(-1, keepdim=True)
    x = logits.masked_fill(empty, 0.0) * (alpha - 1.0)
    return x - x.detach().amax(-1, keepdim=True), empty


def _halved(alpha: float, logits: Tensor) -> Tensor:
    """The definition: Σ [x − τ]₊^s = 1 by halving, s = 1/(α − 1). One Newton step after it carries τ's gradient."""
    x, empty = _anchored(alpha, logits)
    s, low, high = 1.0 / (alpha - 1.0), torch.full_like(x[..., :1], -1.0), torch.zeros_like(x[..., :1])
    with torch.no_grad():
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            heavy = ((x - middle).clamp(min=0.0) ** s).sum(-1, keepdim=True) >= 1.0
            low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    above = (x - low).clamp(min=0.0)
    slope = (s * above.detach() ** (s - 1.0)).masked_fill(above == 0, 0.0).sum(-1, keepdim=True)
    tau = low + ((above**s).sum(-1, keepdim=True) - 1.0) / slope
    return ((x - tau).clamp(min=0.0) ** s).masked_fill(empty, 0.0)


def _sorted(
    alpha: float,
    threshold: Callable[[Tensor], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """Every score in memory, and once more in order."""
    heads = q.shape[1]
    logits = wide(q) * scale @ wide(repeat_heads(k, heads)).mT
    x, empty = _anchored(alpha, hide(wide(logits), mask))
    ordered = x.sort(-1, descending=True).values
    weights = (x - threshold(ordered)).clamp(min=0.0) ** (1.0 / (alpha - 1.0))
    return (weights.masked_fill(empty, 0.0) @ wide(repeat_heads(v, heads))).to(q.dtype)


def _last(holds: Tensor) -> Tensor:
    """The last index [..., 1] at which a statement true at first still holds."""
    return holds.sum(-1, keepdim=True).clamp(min=1) - 1


def _finite(ordered: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden keys, last in order, at the lowest a key of the support can lie; their place; 1 … J."""
    x = ordered.clamp(min=-2.0)
    return x, ordered > -1.0, torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)


def _threshold_of_sums(ordered: Tensor) -> Tensor:
    """α = 2: τ = (Σ of the k largest − 1)/k at the largest k whose k-th number lies above its τ."""
    x, near, count = _finite(ordered)
    tau = (x.cumsum(-1) - 1.0) / count
    return tau.gather(-1, _last((x > tau) & near))


def _threshold_of_squares(ordered: Tensor) -> Tensor:
    """α = 1.5: τ = mean − sqrt((1 − k·variance)/k) of the k largest, at the largest k whose k-th lies above its τ."""
    x, near, count = _finite(ordered)
    mean = x.cumsum(-1) / count
    spread = x.square().cumsum(-1) - count * mean.square()  # k · variance
    room = (1.0 - spread) / count
    tau = mean - room.clamp(min=0.0).sqrt()
    at = _last((x >= tau) & near & (room >= 0))
    # the root again at k alone: elsewhere it may have no gradient
    return mean.gather(-1, at) - room.gather(-1, at).clamp(min=torch.finfo(x.dtype).tiny).sqrt()


def bisection(variant: Variant, alpha: float, block: int = 64) -> Implementation:
    """Chunks of `block` queries against the keys they may see, each computed again in the backward."""
    checked("block", block)
    normalise = softmax_rows if alpha == 1.0 else partial(_by_tangents, alpha)

    def configure(block: int = 64) -> Implementation:
        return bisection(variant, alpha, block)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        plan = bands(mask, block, mask.kv_len)  # one tile a band: all keys that some row of it may see

        def run(call: Call) -> Output:
            return Output(torch.cat([_chunk(normalise, call, band) for band in plan], 2))

        return run

    return Implementation("bisection", variant, prepare, Support(), configure=configure, growth=Growth(bytes=1))


def _chunk(normalise: Normalise, call: Call, band: Band) -> Tensor:
    if not band.tiles:
        return call.q[:, :, band.lo : band.hi].sum(-1, keepdim=True).mul(0.0).expand(-1, -1, -1, call.v.shape[3])
    attended: Tensor = checkpoint(
        _attend, normalise, call, band, use_reentrant=False, preserve_rng_state=False
    )  # nothing random inside
    return attended


def _attend(normalise: Normalise, call: Call, band: Band) -> Tensor:
    (tile,) = band.tiles
    part = tile_of(call, band, tile)
    logits = hide(wide(part.q * part.scale @ part.k.mT), tile.visible)
    return (normalise(logits) @ part.v).to(call.q.dtype)


def _by_tangents(alpha: float, logits: Tensor) -> Tensor:
    weights: Tensor = _Entmax.apply(logits, alpha)  # type: ignore[no-untyped-call]
    return weights


class _Entmax(torch.autograd.Function):
    """logits [..., J] -> weights. The mass of a row is convex in τ: every tangent meets 1 below τ, from either side."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, alpha: float) -> Tensor:
        x, empty = _anchored(alpha, logits)
        s, low, high = 1.0 / (alpha - 1.0), torch.full_like(x[..., :1], -1.0), torch.zeros_like(x[..., :1])
        for _ in range(20 if x.dtype == torch.float32 else 40):
            middle = (low + high) / 2
            above = (x - middle).clamp_(min=0.0)
            power = above.sign() if s == 1.0 else above ** (s - 1.0)  # 0 where there is nothing, as 0^0 is not
            mass, slope = (above * power).sum(-1, keepdim=True), s * power.sum(-1, keepdim=True)
            high = torch.where(mass < 1.0, middle, high)
            low = torch.where(slope > 0, torch.maximum(low, middle + (mass - 1.0) / slope), low)
        weights = ((x - low).clamp_(min=0.0) ** s).masked_fill_(empty, 0.0)
        ctx.save_for_backward(weights)
        ctx.alpha = alpha
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        gain = (weights ** (2.0 - ctx.alpha)).masked_fill(weights == 0, 0.0)
        total = gain.sum(-1, keepdim=True)
        mean = (gain * upstream).sum(-1, keepdim=True) / total.masked_fill(total == 0, 1.0)
        return gain * (upstream - mean), None
