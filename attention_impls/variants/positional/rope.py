"""Rotary positions: q and k turn by their own positions, so that a logit knows the distance alone.

D holds D/2 pairs; pair p of a token at position t turns by t·θ_p, θ_p = base^(−2p/D), p = 0 … D/2 − 1. Hence
L_ij = scale · Σ_p (a_q a_k + b_q b_k) cos((i−j)θ_p) + (a_q b_k − b_q a_k) sin((i−j)θ_p), and A = softmax(L).
interleaved: which numbers are pair p, 0 for the halves' (p, p + D/2; GPT-NeoX, Llama's ports) or 1 for neighbours
(2p, 2p + 1; the paper); a fixed permutation of D leads from one to the other. Positions are the mask's absolute ones:
moving all by a constant changes nothing. Where all stand at one position it is `softmax`. Angles are computed in
float64: in float32 those of far tokens lose their last digits.
Source: Su et al. 2021, "RoFormer", arXiv 2104.09864.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.biased import K_AT, Q_AT, placed, row_distances
from attention_impls.call import Call, wide
from attention_impls.contract import Implementation, Run, Variant
from attention_impls.makers import recast, softmax_of
from attention_impls.scored import dot
from attention_impls.scored_tiles import tiled
from attention_impls.through import softmax_kernel

Turn = Callable[[Tensor, Tensor], Tensor]
"""(x [B, H, T, D], e^(it θ) as complex numbers [1|B, 1, T, D/2]) -> x with every pair turned."""


def frequencies(head_dim: int, base: float, device: torch.device) -> Tensor:
    """θ [D/2] in float64."""
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim)


def split_pairs(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """First and second numbers of every pair, [..., D/2] each."""
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    first, second = x.chunk(2, -1)
    return first, second


def join_pairs(first: Tensor, second: Tensor, interleaved: bool) -> Tensor:
    """What `split_pairs` took apart."""
    return torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)


def rotation(interleaved: bool) -> Turn:
    """Turning by cosines and sines."""

    def turn(x: Tensor, units: Tensor) -> Tensor:
        (first, second), (cos, sin) = split_pairs(wide(x), interleaved), (units.real, units.imag)
        return join_pairs(first * cos - second * sin, second * cos + first * sin, interleaved).to(x.dtype)

    return turn


def _complex_rotation(interleaved: bool) -> Turn:
    """Turning by one product with e^(it θ): a pair is a complex number."""

    def turn(x: Tensor, units: Tensor) -> Tensor:
        turned = torch.complex(*(part.contiguous() for part in split_pairs(wide(x), interleaved))) * units
        return join_pairs(turned.real, turned.imag, interleaved).to(x.dtype)

    return turn


def uneven(call: Call) -> str | None:
    """Why a call cannot be turned."""
    return "rotary positions need an even head size: it holds pairs" if call.q.shape[3] % 2 else None


def logits_by_distance(
    interleaved: bool, base: float, fall: Callable[[Tensor, int], Tensor] | None = None
) -> Callable[[Call, Tensor], Tensor]:
    """A definition by distances, pair by pair: nothing is turned by an absolute position.

    fall(i − j in float64, p) multiplies the share of pair p.
    """

    def logits(call: Call, rows: Tensor) -> Tensor:
        far = row_distances(call, rows).double()
        (qa, qb), (ka, kb) = split_pairs(call.q[:, :, rows], interleaved), split_pairs(call.k, interleaved)
        total = torch.zeros((), dtype=call.q.dtype, device=call.q.device)
        for p, theta in enumerate(frequencies(call.q.shape[3], base, call.q.device)):
            q, k = torch.stack([qa[..., p], qb[..., p]], -1), torch.stack([ka[..., p], kb[..., p]], -1)
            crossed = torch.stack([kb[..., p], -ka[..., p]], -1)
            cos, sin = (far * theta).cos().to(call.q.dtype), (far * theta).sin().to(call.q.dtype)
            share = (q @ k.mT) * cos + (q @ crossed.mT) * sin
            total = total + (share if fall is None else share * fall(far, p).to(call.q.dtype))
        return total * call.scale

    return logits


def turned(variant: Variant, inner: Implementation, name: str, turn: Turn, base: float) -> Implementation:
    """A softmax kernel on turned queries and keys; cosines and sines are made once, in prepare."""

    def changed(call: Call, units: tuple[Tensor, Tensor]) -> Call:
        return replace(call, q=turn(call.q, units[0]), k=turn(call.k, units[1]))

    def prepare(call: Call, lse: bool) -> Run:
        units = units_of(placed(call), base)
        run = inner.prepare(changed(call, units), lse)
        return lambda call: run(changed(call, units))

    def refusal(call: Call, direction: str) -> str | None:
        return (inner.refusal or inner.support.refuses)(changed(call, units_of(placed(call), base)), direction)

    return replace(inner, name=name, variant=variant, prepare=prepare, refusal=refusal, configure=None)


def units_of(part: Call, base: float) -> tuple[Tensor, Tensor]:
    """e^(i·position·θ) of a placed call's queries [1|B, 1, R, D/2] and keys [1, 1, C, D/2], complex64 at least."""
    theta = frequencies(part.q.shape[3], base, part.q.device)
    kind = torch.complex128 if part.q.dtype == torch.float64 else torch.complex64

    def unit(at: Tensor) -> Tensor:
        angles = at[:, None, :, None] * theta
        return torch.polar(torch.ones_like(angles), angles).to(kind)

    return unit(part.parameters[Q_AT]), unit(part.parameters[K_AT][None])


def implementations(interleaved: int = 0, base: float = 10000.0) -> list[Implementation]:
    """Rotary attention; interleaved 0 or 1. Raises ValueError for another number, or a base not above 1."""
    if interleaved not in (0, 1):
        raise ValueError(f"interleaved is 1 (pairs are neighbours) or 0 (pairs are halves); got {interleaved}")
    if not base > 1.0:
        raise ValueError(f"base must be above 1; got {base}")
    variant = softmax_of(
        "rope",
        logits_by_distance(bool(interleaved), base),
        why_not=uneven,
        paper="Su et al. 2021, arXiv 2104.09864",
        formula="A = softmax(scale · (R_i q_i)·(R_j k_j)), R_t turns pair p by t·base^(−2p/D)",
        cost="as softmax, and O((I+J)·D) for the rotation",
    )
    turn = rotation(bool(interleaved))

    def score(part: Call) -> Tensor:
        q_units, k_units = units_of(part, base)
        return dot(replace(part, q=turn(part.q, q_units), k=turn(part.k, k_units)))

    return [
        turned(variant, softmax_kernel("naive"), "naive", turn, base),
        turned(variant, softmax_kernel("naive"), "complex", _complex_rotation(bool(interleaved)), base),
        turned(variant, softmax_kernel("sdpa_flash"), "sdpa_flash", turn, base),
        *recast(variant, placed, tiled(variant, score)),  # turns tile by tile: a cache may hold keys as they came
    ]
