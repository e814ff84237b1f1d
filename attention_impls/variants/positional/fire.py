"""FIRE: a bias from a small network of the distance, as a share of how far back the query can look at all.

A = softmax(scale · q kᵀ + f_h(ψ(|i − j|) / ψ(max(i, |L|)))),  ψ(x) = log(|c| x + 1),  f(x) = W2 relu(W1 x + b1).
i is the query's absolute position: unlike its relatives it is not the same after a move of all positions, but its
argument stays in [0, 1] at any length once i > |L|. threshold (L) and slope (c) [1] are learned, as are w1, b1 [S] and
w2 [H, S]; option hidden: S. A bias of the last layer would move no row and is left out. The paper is causal; without a
causal mask |i − j| is taken, as its code does. With W2 = 0 it is `softmax`. The published code guards against 0 / 0
by 1e-6, of which L > 0 has no need.
Source: Li et al. 2023, "Functional Interpolation for Relative Positions", arXiv 2310.04418.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.biased import Q_AT, biased, distances, row_distances
from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter
from attention_impls.makers import softmax_of
from attention_impls.tiling import checked


def _draw_slope(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """About 0.1, where published code begins."""
    return 0.05 + 0.1 * torch.rand(shape, generator=generator)


def _draw_threshold(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Between 8 and 24, so that short inputs lie on both sides of it (published code begins at 512)."""
    return 8.0 + 16.0 * torch.rand(shape, generator=generator)


def _draw_mix(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])


def _logits(call: Call, rows: Tensor) -> Tensor:
    """One hidden unit at a time."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    p = {name: value.to(wide) for name, value in call.parameters.items()}
    at = call.mask.q_positions(rows).view(-1, 1, len(rows), 1).to(wide)
    far = row_distances(call, rows).abs().to(wide)
    slope, reach = p["slope"].abs(), torch.maximum(at, p["threshold"].abs())
    share = (1 + slope * far).log() / (1 + slope * reach).log()
    bias = torch.zeros_like(share)
    for unit in range(len(p["w1"])):
        bias = bias + p["w2"][:, unit].view(1, -1, 1, 1) * (p["w1"][unit] * share + p["b1"][unit]).clamp(min=0)
    return call.q[:, :, rows] @ call.k.mT * call.scale + bias


def _bias(part: Call) -> Tensor:
    p = part.parameters
    slope = p["slope"].abs()
    reach = torch.maximum(p[Q_AT].to(slope.dtype), p["threshold"].abs())[:, :, None]  # [1|B, R, 1]
    share = torch.log1p(slope * distances(part)[:, 0].abs()) / torch.log1p(slope * reach)  # [1|B, R, C]
    hidden = torch.relu(share.unsqueeze(-1) * p["w1"] + p["b1"])
    return (hidden @ p["w2"].mT).movedim(-1, 1)


def implementations(hidden: int = 32) -> list[Implementation]:
    """FIRE with `hidden` units. Raises ValueError for fewer than 1."""
    size = {"S": checked("hidden", hidden), "U": 1}
    variant = softmax_of(
        "fire",
        _logits,
        parameters={
            "slope": Parameter("U", "weight", draw=_draw_slope, sizes=size),
            "threshold": Parameter("U", "weight", draw=_draw_threshold, sizes=size),
            "w1": Parameter("S", "weight", sizes=size),
            "b1": Parameter("S", "weight", sizes=size),
            "w2": Parameter("H S", "weight", draw=_draw_mix, sizes=size),
        },
        paper="Li et al. 2023, arXiv 2310.04418",
        formula="A = softmax(scale · q kᵀ + f_h(ψ(|i−j|) / ψ(max(i, |L|)))), ψ(x) = log(|c|x + 1)",
        cost="time O(I·J·(D+S)); memory O(I·J·(H+S)) naive, O(I) and one tile of S tiled",
    )
    return biased(variant, _bias)
