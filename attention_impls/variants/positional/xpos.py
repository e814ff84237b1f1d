"""xPos: rotary positions whose pairs also fade with distance, each at a rate of its own.

L_ij = scale · Σ_p ζ_p^((i−j)/s) · (rotary term of pair p; see rope), ζ_p = (2p/D + 0.4) / 1.4 < 1, s = scale_base;
A = softmax(L). Slow pairs hardly fade, fast ones do. Options: interleaved, as of rope, 1 as published; scale_base.
Causal only: keys after the query would grow instead of fade. As scale_base → ∞ it is `rope`.
Kernels multiply q by ζ^((i−c)/s) and k by ζ^((c−j)/s) about a middle c. `naive` has one c for all, which overflows
float32 on long inputs and is refused there; `tiled` has the last key of each tile, where nothing far grows.
Source: Sun et al. 2022, "A Length-Extrapolatable Transformer", arXiv 2212.10554.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.biased import K_AT, Q_AT, placed
from attention_impls.call import Call
from attention_impls.contract import MASK_WORDS, Implementation
from attention_impls.makers import recast, softmax_of
from attention_impls.scored import dot, naive
from attention_impls.scored_tiles import tiled
from attention_impls.undefined import either
from attention_impls.variants.positional.rope import join_pairs, logits_by_distance, rotation, uneven, units_of

BASE = 10000.0  # of the rotation
LONGEST = 64.0  # in scale_base: from the middle 32, which is a factor of 0.2857^±32, about 10^±17


def _faded(pairs: int, device: torch.device) -> Tensor:
    """log ζ [D/2] in float64."""
    return ((torch.arange(pairs, dtype=torch.float64, device=device) / pairs + 0.4) / 1.4).log()


def _not_causal(call: Call) -> str | None:
    return None if call.mask.causal else "xpos is causal only: later keys would grow instead of fade; add causal"


def _factor(at: Tensor, middle: Tensor, scale_base: float, like: Tensor, interleaved: bool) -> Tensor:
    """ζ^((t − c)/s) of positions [1|B, T] -> [1|B, 1, T, D] in the dtype of `like`."""
    powers = (at - middle)[:, None, :, None] / scale_base * _faded(like.shape[3] // 2, at.device)
    fading = powers.exp().to(like.dtype)
    return join_pairs(fading, fading, interleaved)


def _score(interleaved: bool, scale_base: float, middle: Callable[[Tensor], Tensor]) -> Callable[[Call], Tensor]:
    """The score of a placed call or tile; `middle` picks c from the positions of its keys [C]."""
    turn = rotation(interleaved)

    def score(part: Call) -> Tensor:
        k_at = part.parameters[K_AT][None]
        q_at = torch.maximum(part.parameters[Q_AT], k_at[0, 0])  # one before all keys sees none: it must not overflow
        (q_units, k_units), c = units_of(part, BASE), middle(k_at[0])
        q = turn(part.q, q_units) * _factor(q_at, c, scale_base, part.q, interleaved)
        k = turn(part.k, k_units) * _factor(2 * c - k_at, c, scale_base, part.k, interleaved)
        return dot(replace(part, q=q, k=k))

    return score


def _too_long(inner: Implementation, scale_base: float) -> Implementation:
    def refusal(call: Call, direction: str) -> str | None:
        mask = call.mask
        span = max(mask.last_query() + 1, mask.k_start + mask.kv_len) - min(mask.first_query(), mask.k_start)
        if span > LONGEST * scale_base:
            return f"would overflow: positions {span} apart, at most {LONGEST * scale_base:.0f} about one middle"
        return inner.support.refuses(call, direction)

    return replace(inner, refusal=refusal)


def implementations(interleaved: int = 1, scale_base: float = 512.0) -> list[Implementation]:
    """xPos; interleaved 0 or 1. Raises ValueError for another number, or a scale_base not above 0."""
    if interleaved not in (0, 1):
        raise ValueError(f"interleaved is 1 (pairs are neighbours) or 0 (pairs are halves); got {interleaved}")
    if not scale_base > 0.0:
        raise ValueError(f"scale_base must be above 0; got {scale_base}")

    def fall(far: Tensor, pair: int, pairs: int) -> Tensor:
        return ((pair / pairs + 0.4) / 1.4) ** (far / scale_base)

    def logits(call: Call, rows: Tensor) -> Tensor:
        pairs = call.q.shape[3] // 2
        # a key after the query is hidden: its factor, which may be infinite, is never wanted
        return logits_by_distance(bool(interleaved), BASE, lambda far, p: fall(far.clamp(min=0), p, pairs))(call, rows)

    variant = softmax_of(
        "xpos",
        logits,
        masks=MASK_WORDS - {"full"},
        why_not=either(_not_causal, uneven),
        paper="Sun et al. 2022, arXiv 2212.10554",
        formula="A = softmax(scale · Σ_p ζ_p^((i−j)/s) (R_i q_i)_p·(R_j k_j)_p), ζ_p = (2p/D + 0.4)/1.4",
        cost="as softmax, and O((I+J)·D) for the rotation",
    )
    whole = _score(bool(interleaved), scale_base, lambda k_at: k_at[len(k_at) // 2])
    local = _score(bool(interleaved), scale_base, lambda k_at: k_at[-1])
    made = naive(variant, whole), tiled(variant, local)
    return recast(variant, placed, _too_long(made[0], scale_base), made[1])
