"""Hedgehog: linear attention with a small learned feature map, trained to mimic softmax attention.

A_ij = φ(q_i)·ψ(k_j) / Σ_visible, φ(x) = [softmax(W_q x), softmax(−W_q x)] with 2F features, ψ with W_k. W_q [H, D,
F] a query head, W_k [G, D, F] a key/value head. Features are positive and each half sums to 1, so nothing overflows
whatever x is. It has no scale: W is one. The paper's equation has exp in place of each softmax; a library takes one
softmax over both halves of ±2W x.

Source: Zhang et al. 2024, "The Hedgehog & the Porcupine", arXiv 2402.04347. How W is trained is no part of this.
Option: features, the size F (the paper's is D).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter, Variant
from attention_impls.linearised import Feature, linearised, log_weight, normalised
from attention_impls.tiling import checked
from attention_impls.undefined import no_scale, one


def _similar(call: Call, rows: Tensor) -> Tensor:
    q = torch.einsum("bhid,hdf->bhif", call.q[:, :, rows], call.parameters["w_q"])
    k = torch.einsum("bhjd,hdf->bhjf", call.k, call.parameters["w_k"])
    s = q.softmax(-1) @ k.softmax(-1).mT + (-q).softmax(-1) @ (-k).softmax(-1).mT
    visible = call.mask.visible(rows)
    return s if visible is None else s.masked_fill(~visible, 0.0)


def _weights(call: Call, rows: Tensor) -> Tensor:
    s = _similar(call, rows)
    return normalised(s, s.sum(-1, keepdim=True))


def _lse(call: Call, rows: Tensor) -> Tensor:
    return log_weight(_similar(call, rows).sum(-1, keepdim=True))


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=generator) / math.sqrt(shape[1])


def _features(call: Call) -> tuple[Feature, Feature]:
    """φ and ψ, in float32 at least."""

    def of(name: str) -> Feature:
        w = call.parameters[name]
        w = w.to(torch.promote_types(w.dtype, torch.float32))

        def feature(x: Tensor) -> Tensor:
            projected = x.to(w.dtype) @ w
            return torch.softmax(torch.stack([projected, -projected], -2), -1).flatten(-2)

        return feature

    return of("w_q"), of("w_k")


def implementations(features: int = 64) -> list[Implementation]:
    """The three forms with F = `features`. Raises ValueError for fewer than one."""
    size = {"F": checked("features", features)}
    variant = Variant(
        "hedgehog",
        weights=_weights,
        lse=_lse,
        join="lse",
        scale=one,
        why_not=no_scale("hedgehog"),
        parameters={
            "w_q": Parameter("H D F", "weight", draw=_draw, sizes=size),
            "w_k": Parameter("G D F", "weight", draw=_draw, sizes=size),
        },
        paper="Zhang et al. 2024, arXiv 2402.04347",
        formula="A = φ(q)·ψ(k) over its row sums, φ(x) = [softmax(Wx), softmax(−Wx)]",
        cost="time O((I+J)·2F·(D+E)); memory O((I+J)·2F), or a state of 2F·E and one chunk",
    )
    return linearised(variant, _features)
