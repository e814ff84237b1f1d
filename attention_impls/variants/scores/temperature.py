"""Softmax with a temperature: A = softmax(scale · q kᵀ / tau).

tau below 1 sharpens the rows towards one-hot, above 1 flattens them towards uniform; tau 1 is softmax
attention. It is a change of scale, and is computed as one.

Source: Hinton et al. 2015, arXiv 1503.02531 (the temperature of a softmax).
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Implementation
from attention_impls.makers import recast, softmax_of
from attention_impls.through import softmax_kernel


def implementations(tau: float = 2.0) -> list[Implementation]:
    """Softmax attention at temperature tau. Raises ValueError unless tau is a positive finite number."""
    if not 0.0 < tau < math.inf:
        raise ValueError(f"option tau of temperature must be positive and finite; got {tau}")

    def logits(call: Call, rows: Tensor) -> Tensor:
        return call.q[:, :, rows] @ call.k.mT * call.scale / tau

    def cooled(call: Call) -> Call:
        return replace(call, scale=call.scale / tau)

    variant = softmax_of(
        "temperature",
        logits,
        paper="Hinton et al. 2015, arXiv 1503.02531",
        formula="A = softmax(scale · q kᵀ / tau), scale = D^-1/2",
        cost="as softmax",
    )
    return recast(variant, cooled, softmax_kernel("naive"), softmax_kernel("sdpa_flash"))
