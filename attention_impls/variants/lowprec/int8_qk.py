"""Attention with q and k in int8: A = softmax(scale · s_q s_k · q̄ k̄ᵀ), q̄ and k̄ whole numbers from −127 to 127.

Softmax and A·v stay as they are. smooth takes the mean over the keys off every key, block says how many tokens share a
scale (1: each has its own, 0: all of a head of a sequence). What helps against channels that all keys have shifted
alike does nothing against channels that are merely larger. Gradients pass straight through the rounding; see
`attention_impls.rounding`.

`int_mm` multiplies integers, exactly, in int32 (torch._int_mm), head by head; `simulated` multiplies the same numbers
in floating point: its time says nothing of int8. Smoothing and shared scales are refused where a mask hides from some
rows what others see: the original takes them over all keys there too, and early rows then feel later ones.
Source: Zhang et al. 2024, "SageAttention", arXiv 2410.02367, whose A·v is in half precision.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call, wide
from attention_impls.contract import Implementation, Support
from attention_impls.rounding import Format, Scaled, Sharing, keys_of, rounded_softmax, scaled, simulated
from attention_impls.scored import naive

INT8 = Format(127.0, torch.round)


def _product(q: Scaled, k: Scaled) -> Tensor:
    """q̄ k̄ᵀ [B, H, I, J] of whole numbers, exact in int32 up to D = 2^31 / 127²."""
    left, right = (x.numbers.to(torch.int8).flatten(0, 1) for x in (q, k))
    found = left.new_empty((len(left), left.shape[1], right.shape[1]), dtype=torch.int32)
    for head, (a, b) in enumerate(zip(left, right, strict=True)):
        found[head] = torch._int_mm(a, b.mT)
    return found.view(*q.numbers.shape[:2], *found.shape[1:])


def _integer_score(sharing: Sharing, part: Call) -> Tensor:
    q, k = scaled(wide(part.q), INT8, sharing.block), scaled(keys_of(part, sharing), INT8, sharing.block)
    scores: Tensor = _product(q, k).to(q.scale.dtype) * (q.scale * part.scale) * k.scale.mT
    return scores


def implementations(smooth: int = 0, block: int = 1) -> list[Implementation]:
    """Both forms. Raises ValueError for a smooth that is neither 0 nor 1, and for a negative block."""
    sharing = Sharing(smooth, block)
    variant = rounded_softmax(
        "int8_qk",
        INT8,
        sharing,
        paper="Zhang et al. 2024, arXiv 2410.02367",
        formula="A = softmax(scale · s_q s_k · round(q / s_q) round((k − smooth · mean_j k) / s_k)ᵀ), s = max|·| / 127",
        cost="as softmax, q kᵀ in int8, and O((I+J)·D) to round",
    )
    floats = replace(naive(variant, simulated(INT8, sharing)), name="simulated")
    integers = naive(variant, lambda part: _integer_score(sharing, part))
    support = Support(devices=frozenset({"cpu"}), lse="value", backward=False)
    return [floats, replace(integers, name="int_mm", support=support, backend={"cpu": "_int_mm"})]
