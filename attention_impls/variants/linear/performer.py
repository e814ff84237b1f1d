"""Performer, FAVOR+: softmax attention with exp(q·k) replaced by its estimate from positive random features.

A_ij = φ(q_i)·φ(k_j) / Σ_visible φ(q_i)·φ(k_j), φ(x) = F^-1/2 exp(Ω x' − |x'|²/2), x' = √scale · x, and Ω [F, D]
rows in orthogonal blocks with the norms of normal vectors (unbiased: E φ(q)·φ(k) = exp(scale · q·k)).
Approximates `softmax`, in the limit F → ∞; exact to its own definition in every form. Source: Choromanski
et al. 2020, "Rethinking Attention with Performers", arXiv 2009.14794.

No small number is added to the features (published code adds 1e-4, which biases it when F is large). Queries are
stabilised by the row's own maximum. Keys are not: a maximum over keys would let one that nobody sees
move other rows, and ω·k' − |k'|²/2 is at most |ω|²/2, reached by a key that is a row of Ω: within float32 for
any key up to D of about 150, for usual keys whatever D is. A query whose visible keys all underflow gives zeros.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter, Variant
from attention_impls.linearised import Feature, linearised, normalised


def orthogonal_features(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Ω [F, D]: blocks of D orthonormal rows, each row scaled to the norm of an independent normal vector."""
    count, dim = shape
    q, r = torch.linalg.qr(torch.randn((-(-count // dim), dim, dim), generator=generator))
    signs = r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # they make it uniform over rotations
    norms = torch.randn((count, dim), generator=generator).norm(dim=-1, keepdim=True)
    omega: Tensor = (q * signs).mT.flatten(0, 1)[:count] * norms
    return omega


def features_of(call: Call) -> tuple[Feature, Feature]:
    """φ for queries and for keys, up to factors that cancel: F^-1/2, and one per query row."""
    omega = call.parameters["omega"]
    omega = omega.to(torch.promote_types(omega.dtype, torch.float32))

    def exponent(x: Tensor) -> Tensor:
        x = x.to(omega.dtype) * math.sqrt(call.scale)
        return x @ omega.mT - x.square().sum(-1, keepdim=True) / 2

    def phi(q: Tensor) -> Tensor:
        raised = exponent(q)
        return (raised - raised.detach().amax(-1, keepdim=True)).exp()

    return phi, lambda k: exponent(k).exp()


def _weights(call: Call, rows: Tensor) -> Tensor:
    """φ(q)·φ(k) over its sum. The largest exponent of any key is taken off: in float64 that hides no other key."""
    omega, root = call.parameters["omega"], math.sqrt(call.scale)
    q, k = call.q[:, :, rows] * root, call.k * root
    queries = q @ omega.mT - q.square().sum(-1, keepdim=True) / 2
    keys = k @ omega.mT - k.square().sum(-1, keepdim=True) / 2
    visible = call.mask.visible(rows)
    highest = keys.detach().amax((-2, -1), keepdim=True)
    phi = (queries - queries.detach().amax(-1, keepdim=True)).exp()
    scores = phi @ (keys - highest).exp().mT
    if visible is not None:
        scores = scores.masked_fill(~visible, 0.0)
    return normalised(scores, scores.sum(-1, keepdim=True))


def implementations(features: int = 128) -> list[Implementation]:
    """The three forms with `features` random features (rows of Ω)."""
    if features < 1:
        raise ValueError(f"features must be at least 1; got {features}")
    variant = Variant(
        "performer",
        weights=_weights,
        parameters={"omega": Parameter("F D", "random", draw=orthogonal_features, sizes={"F": features})},
        paper="Choromanski et al. 2020, arXiv 2009.14794",
        formula="A = φ(q)·φ(k) / Σ φ(q)·φ(k), φ(x) = F^-1/2 exp(Ω x' − |x'|²/2), x' = √scale · x",
        cost="time O((I+J)·F·(D+E)); memory O((I+J)·F), or a state of F·E and one chunk",
        approximates="softmax",
    )
    return linearised(variant, features_of)
