"""Sandwich: of sinusoidal positions only their inner product is kept, as a bias; each head divides it by a ratio.

A = softmax(scale · q kᵀ + Σ_m cos((i−j) θ_m) / ratio_h), θ_m = 10000^(−2m/W), m = 0 … W/2 − 1, ratio_h = 8h/H,
h = 1 … H. Option width: W (d̄ of the paper, 128 as published). It falls with distance, roughly as a logarithm does.
ratio [H] is a constant. The paper is causal; the form is symmetric. As ratio → ∞ it is `softmax`.
`naive` and `tiled` take the sum of cosines once for every distance and lay it out by a shift.
Source: Chi et al. 2022, "Dissecting Transformer Length Extrapolation", arXiv 2212.10356.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_impls.biased import biased, by_distance, row_distances
from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter
from attention_impls.makers import softmax_of


def ratios(heads: int) -> Tensor:
    """8h/H, h = 1 … H."""
    return torch.arange(1, heads + 1) * (8.0 / heads)


def _logits(width: int, call: Call, rows: Tensor) -> Tensor:
    """Pair by pair, one frequency at a time."""
    far = row_distances(call, rows).double()
    total = torch.zeros_like(far)
    for m in range(width // 2):
        total = total + (far / 10000.0 ** (2 * m / width)).cos()
    wide = torch.promote_types(call.q.dtype, torch.float32)
    ratio = call.parameters["ratio"].to(wide).view(1, -1, 1, 1)
    return call.q[:, :, rows] @ call.k.mT * call.scale + total.to(wide) / ratio


def _bias(width: int, part: Call) -> Tensor:
    ratio = part.parameters["ratio"].to(part.q.dtype)

    def values(far: Tensor) -> Tensor:
        theta = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=far.device) / width)
        similar = (far.unsqueeze(-1) * theta).cos().sum(-1).to(ratio.dtype)
        return similar / ratio.view(-1, *[1] * far.dim())

    return by_distance(part, values)


def implementations(width: int = 128) -> list[Implementation]:
    """Sandwich from sinusoids of `width` numbers. Raises ValueError for a width that is odd or below 2."""
    if width < 2 or width % 2:
        raise ValueError(f"width counts sines and cosines: even, at least 2; got {width}")
    variant = softmax_of(
        "sandwich",
        partial(_logits, width),
        parameters={"ratio": Parameter("H", "constant", draw=lambda _, shape: ratios(shape[0]), dtype="float32")},
        paper="Chi et al. 2022, arXiv 2212.10356",
        formula="A = softmax(scale · q kᵀ + Σ_m cos((i−j) θ_m) / ratio_h), ratio_h = 8h/H",
        cost="time O(I·J·D + (I+J)·W); memory O(H·I·J) materialised, O(I) and one tile of bias tiled",
    )
    return biased(variant, partial(_bias, width))
