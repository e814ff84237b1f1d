"""Soft-capped logits: A = softmax(cap · tanh(scale · q kᵀ / cap)): no logit leaves (−cap, cap).

The cap comes before the mask: hidden keys stay at −inf. cap → ∞ is softmax attention. Source: Gemma Team 2024
(Gemma 2), arXiv 2408.00118, whose cap of attention logits is 50, the default here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Implementation
from attention_impls.makers import softmax_of
from attention_impls.scored import naive
from attention_impls.scored_tiles import tiled


def implementations(cap: float = 50.0) -> list[Implementation]:
    """Softmax attention of logits capped at ±cap. Raises ValueError unless cap is positive and finite."""
    if not 0.0 < cap < math.inf:
        raise ValueError(f"option cap of softcap must be positive and finite; got {cap}")

    def logits(call: Call, rows: Tensor) -> Tensor:
        return cap * torch.tanh(call.q[:, :, rows] @ call.k.mT * call.scale / cap)

    def score(part: Call) -> Tensor:
        return torch.tanh((part.q * (part.scale / cap)) @ part.k.mT) * cap

    variant = softmax_of(
        "softcap",
        logits,
        paper="Gemma Team 2024, arXiv 2408.00118",
        formula="A = softmax(cap · tanh(scale · q kᵀ / cap)), scale = D^-1/2, cap = 50",
        cost="time O(I·J·D); memory O(I·J) materialised, O(I) tiled",
    )
    return [naive(variant, score), tiled(variant, score)]
