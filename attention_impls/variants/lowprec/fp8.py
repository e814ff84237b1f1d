"""Attention with q and k (and v) in fp8 e4m3: A = softmax(scale · q̃ k̃ᵀ). A simulation of numbers, not of time.

e4m3 has 3 bits of mantissa, exponents down to 2^-6, below them steps of 2^-9, and ends at 448, to which the largest
number under a scale is mapped; what is larger is clamped. On numbers of one size it is coarser than int8, whose steps
are even; between large and small ones it is finer. Options smooth and block as in `int8_qk`; values-1 rounds v too,
one scale for each token. `simulated` rounds to torch's float8_e4m3fn and computes in float32 or wider: it takes more
time than plain attention does, and nothing about fp8's speed can be read from it. Gradients pass straight through.

Sources: Micikevicius et al. 2022 (the format), arXiv 2209.05433; Shah et al. 2024 (FlashAttention-3), arXiv
2407.08608, whose scales are shared by blocks and whose A is rounded as well, which here it is not.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call, wide
from attention_impls.contract import Implementation, Variant
from attention_impls.makers import recast
from attention_impls.rounding import Format, Sharing, rounded_plainly, rounded_softmax, simulated, value
from attention_impls.scored import naive

LARGEST = 448.0
LOWEST_EXPONENT, MANTISSA = -6, 3


def nearest(x: Tensor) -> Tensor:
    """The e4m3 number nearest to each x, ties to even, by arithmetic: the definition. Beyond 448 it is 448."""
    exponent = torch.frexp(x).exponent.clamp(min=LOWEST_EXPONENT + 1) - 1  # frexp's mantissa lies in [0.5, 1)
    step = torch.ldexp(torch.ones_like(x), exponent - MANTISSA)
    return ((x / step).round() * step).clamp(-LARGEST, LARGEST)


def cast(x: Tensor) -> Tensor:
    """The same by torch's dtype. float64 goes through float32 on the way, as torch itself does it."""
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).to(x.dtype)


WRITTEN, CAST = Format(LARGEST, nearest), Format(LARGEST, cast)


def _with_rounded_values(base: Variant, form: Format) -> Variant:
    """The variant whose v is rounded too, one scale for each token."""

    def output(call: Call, rows: Tensor) -> Tensor:
        assert base.weights is not None  # narrows the type: it is a softmax
        return base.weights(call, rows) @ rounded_plainly(wide(call.v), form, 1).to(call.v.dtype)

    return replace(base, weights=None, output=output)


def _rounds_values(call: Call) -> Call:
    return replace(call, v=value(wide(call.v), CAST, 1).to(call.v.dtype))


def implementations(smooth: int = 0, block: int = 1, values: int = 1) -> list[Implementation]:
    """The simulation. Raises ValueError for a smooth or values that is neither 0 nor 1, and for a negative block."""
    if values not in (0, 1):
        raise ValueError(f"option values must be 1 (v is rounded too) or 0; got {values}")
    sharing = Sharing(smooth, block)
    plain = rounded_softmax(
        "fp8",
        WRITTEN,
        sharing,
        paper="Micikevicius et al. 2022, arXiv 2209.05433; Shah et al. 2024, arXiv 2407.08608",
        formula="A = softmax(scale · q̃ k̃ᵀ), x̃ = s · e4m3(x / s), s = max|x| / 448, and out = A ṽ",
        cost="a simulation of numbers: its time says nothing of fp8",
    )
    kernel = replace(naive(plain, simulated(CAST, sharing)), name="simulated")
    return recast(_with_rounded_values(plain, WRITTEN), _rounds_values, kernel) if values else [kernel]
