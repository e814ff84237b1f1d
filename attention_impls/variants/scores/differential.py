"""Differential attention: the difference of two softmax maps, then a norm of each head's output.

D holds two halves: q = [q1; q2], k = [k1; k2]. A = softmax(scale · q1 k1ᵀ) − λ softmax(scale · q2 k2ᵀ), scale =
(D/2)^-1/2, λ = exp(λq1·λk1) − exp(λq2·λk2) + λ_init, with lambda_q = [λq1; λq2] and lambda_k [D] shared by all heads.
out = (1 − λ_init) · rms_norm(A v) over E, eps 1e-5, without a gain. Source: Ye et al. 2024, "Differential
Transformer", arXiv 2410.05258, where λ_init grows with depth (0.8 in the limit, the default here). Options:
lambda_init; norm, 0 to leave norm and factor out. With λ = 0 and no norm it is `softmax` of the first halves.
A query that sees no key gives zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads, softmax_for, softmax_rows
from attention_impls.contract import POLICY, Implementation, Parameter, Variant
from attention_impls.makers import of_call
from attention_impls.through import softmax_kernel, through

EPS = 1e-5
Softmax = Callable[[Tensor], Tensor]


def _small(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal with deviation 0.1, as published."""
    return 0.1 * torch.randn(shape, generator=generator)


def _lambda(call: Call, init: float) -> Tensor:
    """λ, a scalar tensor, in float32 at least: with few visible keys almost all of a row cancels."""
    first, second = (_wide(call.parameters["lambda_q"]) * _wide(call.parameters["lambda_k"])).chunk(2)
    return first.sum().exp() - second.sum().exp() + init


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _maps(call: Call, q: Tensor, k: Tensor, visible: Tensor | None, softmax: Softmax) -> tuple[Tensor, Tensor]:
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    first, second = (_wide(q1 @ k1.mT) * call.scale, _wide(q2 @ k2.mT) * call.scale)
    return softmax(hide(first, visible)), softmax(hide(second, visible))


def _weights(init: float, call: Call, rows: Tensor) -> Tensor:
    first, second = _maps(call, call.q[:, :, rows], call.k, call.mask.visible(rows), softmax_rows)
    return (first - _lambda(call, init) * second).to(call.q.dtype)


def _normed(init: float, out: Tensor) -> Tensor:
    """(1 − λ_init) · out / rms(out) over the last axis, in float32 at least."""
    wide = _wide(out)
    normed = wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * (1.0 - init)
    return normed.to(out.dtype)


def _naive(init: float, norm: bool, call: Call) -> Tensor:
    """Both maps materialised, in float32 at least, one product with v."""
    heads = call.q.shape[1]
    maps = _maps(call, call.q, repeat_heads(call.k, heads), call.mask.visible(), softmax_for(call.mask))
    out = (maps[0] - _lambda(call, init) * maps[1]) @ _wide(repeat_heads(call.v, heads))
    return (_normed(init, out) if norm else out).to(call.q.dtype)


def _stacked(call: Call) -> Call:
    """Softmax attention with 2·pieces times as many heads of size D/2: [map, piece of v, head], pieces of v D/2 wide.

    Fused kernels want values as wide as keys, so each map is computed once for every piece, as published.
    On CPU half precision runs in float32: a map's output would be rounded before the two cancel. On CUDA the
    kernel has no float32.
    """
    call = call if call.where == "cuda" else call.map(_wide)
    half = call.q.shape[3] // 2
    pieces = call.v.split(half, -1)
    q, k = (torch.cat([part for part in x.chunk(2, -1) for _ in pieces], 1) for x in (call.q, call.k))
    return replace(call, q=q, k=k, v=torch.cat([*pieces, *pieces], 1), parameters={}, axes={})


def _joined(init: float, norm: bool, out: Tensor, call: Call) -> Tensor:
    both = out.unflatten(1, (2, -1, call.q.shape[1]))  # [B, 2, pieces, H, I, D/2]
    first, second = (x.permute(0, 2, 3, 1, 4).flatten(-2) for x in both.unbind(1))
    mixed = first - _lambda(call, init) * second
    return (_normed(init, mixed) if norm else mixed).to(call.q.dtype)


def _not_stacked(call: Call) -> str | None:
    if call.mask.dense is not None and call.mask.dense.shape[1] > 1:
        return POLICY + "a mask per head would be repeated for every copy of the heads"
    half = call.q.shape[3] // 2
    if call.v.shape[3] % half == 0:
        return None
    return f"needs a value size that is a multiple of half the head size ({call.v.shape[3]} over {half})"


def _odd(call: Call) -> str | None:
    return "differential needs an even head size: it holds two halves" if call.q.shape[3] % 2 else None


def implementations(lambda_init: float = 0.8, norm: int = 1) -> list[Implementation]:
    """The two forms; lambda_init in [0, 1), norm 1 or 0. Raises ValueError for other values."""
    if not 0.0 <= lambda_init < 1.0:
        raise ValueError(f"lambda_init must lie in [0, 1); got {lambda_init}")
    if norm not in (0, 1):
        raise ValueError(f"norm is 1 (the norm of each head) or 0 (none); got {norm}")
    vector = Parameter("D", "weight", draw=_small)
    variant = Variant(
        "differential",
        weights=partial(_weights, lambda_init),
        parameters={"lambda_q": vector, "lambda_k": vector},
        row_stochastic=False,
        finish=(lambda out, call, rows: _normed(lambda_init, out)) if norm else None,
        scale=lambda head_dim: (head_dim / 2) ** -0.5,
        why_not=_odd,
        paper="Ye et al. 2024, arXiv 2410.05258",
        formula="A = softmax(scale · q1 k1ᵀ) − λ softmax(scale · q2 k2ᵀ); out = (1 − λ_init) rms_norm(A v)",
        cost="time O(I·J·(D+E)), memory O(2·I·J) materialised; fused O(I·J·(D+2E)), memory O(I·(D+2E))",
    )
    flash = _flash(variant, lambda_init, bool(norm))
    return [of_call(variant, partial(_naive, lambda_init, bool(norm)), name="naive"), flash]


def _flash(variant: Variant, init: float, norm: bool) -> Implementation:
    inner = softmax_kernel("sdpa_flash")
    return through(inner, variant, _stacked, partial(_joined, init, norm), why_not=_not_stacked)
