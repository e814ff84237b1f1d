"""Random feature attention (RFA): attention with a Gaussian kernel of unit vectors, estimated by sines and cosines.

A_ij = φ(q_i)·φ(k_j) / Σ_visible φ(q_i)·φ(k_j), φ(x) = F^-1/2 [sin Ωx', cos Ωx'] with 2F features, x' = √scale · x /
|x|, Ω [F, D] independent normal (shared by all heads). E φ(q)·φ(k) = exp(−scale |q̂ − k̂|²/2), and because the
vectors have length 1 that is exp(scale · q̂·k̂) up to a constant that cancels: in the limit F → ∞ it is softmax
attention of unit queries and keys. scale = 1 (the paper learns its root, 1/σ). φ(q)·φ(k) is the mean of F cosines:
unlike Performer's it can be negative, and a row whose sum comes near zero is large; published code bounds that sum
from below, here nothing is added. Stochastic (Ω). No gate (the paper's RFA-Gate is another function).

Source: Peng et al. 2021, "Random Feature Attention", arXiv 2103.02143. Option: features, the size F.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import normalize

from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter, Variant
from attention_impls.linearised import Feature, linearised, normalised
from attention_impls.tiling import checked
from attention_impls.undefined import one


def _weights(call: Call, rows: Tensor) -> Tensor:
    """The mean over features of cos(ω·q' − ω·k'), over its row sum."""
    omega, root = call.parameters["omega"], math.sqrt(call.scale)
    q, k = call.q[:, :, rows], call.k
    q, k = (root * x / vector_norm(x, dim=-1, keepdim=True) for x in (q, k))
    s = ((q @ omega.mT)[:, :, :, None] - (k @ omega.mT)[:, :, None]).cos().mean(-1)
    visible = call.mask.visible(rows)
    s = s if visible is None else s.masked_fill(~visible, 0.0)
    return normalised(s, s.sum(-1, keepdim=True))


def _features(call: Call) -> tuple[Feature, Feature]:
    """φ without F^-1/2, which cancels; in float32 at least."""
    omega = call.parameters["omega"]
    omega = omega.to(torch.promote_types(omega.dtype, torch.float32)) * math.sqrt(call.scale)

    def phi(x: Tensor) -> Tensor:
        angle = normalize(x.to(omega.dtype), dim=-1) @ omega.mT
        return torch.cat([angle.sin(), angle.cos()], -1)

    return phi, phi


def implementations(features: int = 128) -> list[Implementation]:
    """The three forms with `features` random directions. Raises ValueError for fewer than one."""
    variant = Variant(
        "rfa",
        weights=_weights,
        parameters={"omega": Parameter("F D", "random", sizes={"F": checked("features", features)})},
        scale=one,
        paper="Peng et al. 2021, arXiv 2103.02143",
        formula="A = φ(q)·φ(k) / Σ φ(q)·φ(k), φ(x) = F^-1/2 [sin Ωx', cos Ωx'], x' = √scale · x/|x|",
        cost="time O((I+J)·2F·(D+E)); memory O((I+J)·2F), or a state of 2F·E and one chunk",
    )
    return linearised(variant, _features)
