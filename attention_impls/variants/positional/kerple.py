"""KERPLE: softmax attention with a bias that falls with distance as a learned conditionally positive definite kernel.

A = softmax(scale · q kᵀ + b_h(|i − j|)); option power 0: b(x) = −r1 log(1 + r2 x), 1: b(x) = −r1 x^r2. amplitude (r1)
and rate (r2) [H] are learned and above 0, the power's rate at most 2. The paper is causal; without a causal mask this
is the symmetric form. With r1 = 0 it is `softmax`; the power form with r2 = 1 is `alibi` of slopes r1.
Source: Chi et al. 2022, "KERPLE: Kernelized Relative Positional Embedding", arXiv 2205.09921.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_impls.biased import biased, by_distance, row_distances
from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter
from attention_impls.makers import softmax_of

LEAST = 0.01  # below it published code clamps both numbers


def _draw(most: float, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return LEAST + (most - LEAST) * torch.rand(shape, generator=generator)


def _logits(power: bool, call: Call, rows: Tensor) -> Tensor:
    wide = torch.promote_types(call.q.dtype, torch.float32)  # half precision cannot count distances beyond 2048
    far = row_distances(call, rows).abs().to(wide)
    r1, r2 = (call.parameters[name].to(wide).view(1, -1, 1, 1) for name in ("amplitude", "rate"))
    fall = far**r2 if power else (1.0 + r2 * far).log()
    return call.q[:, :, rows] @ call.k.mT * call.scale - r1 * fall


def _bias(power: bool, part: Call) -> Tensor:
    r1, r2 = part.parameters["amplitude"], part.parameters["rate"]

    def values(far: Tensor) -> Tensor:
        a, b = (r.view(-1, *[1] * far.dim()) for r in (r1, r2))
        x = far.abs().to(r1.dtype)
        return -a * (torch.pow(x, b) if power else torch.log1p(x * b))

    return by_distance(part, values)


def implementations(power: int = 0) -> list[Implementation]:
    """KERPLE by logarithm (power 0) or by power (1). Raises ValueError for another number."""
    if power not in (0, 1):
        raise ValueError(f"power is 0 (the logarithmic kernel) or 1 (the power kernel); got {power}")
    form = "r1 |i − j|^r2" if power else "r1 log(1 + r2 |i − j|)"
    variant = softmax_of(
        "kerple",
        partial(_logits, bool(power)),
        parameters={
            "amplitude": Parameter("H", "weight", draw=partial(_draw, 2.0)),
            "rate": Parameter("H", "weight", draw=partial(_draw, 2.0 if power else 1.0)),
        },
        paper="Chi et al. 2022, arXiv 2205.09921",
        formula=f"A = softmax(scale · q kᵀ − {form}), scale = D^-1/2",
        cost="time O(I·J·D); memory O(H·I·J) materialised, O(I) and one tile of bias tiled",
    )
    return biased(variant, partial(_bias, bool(power)))
