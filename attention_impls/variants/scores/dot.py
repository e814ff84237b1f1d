"""Dot-product attention (Luong's "dot"): A = softmax(q kᵀ), unscaled.

Softmax attention with scale 1: at D = 64 the logits of unit normal inputs have standard deviation 8, and
rows are nearly one-hot. A scale given by the caller is applied; D^-1/2 gives scaled dot-product attention.

Source: Luong, Pham and Manning 2015, arXiv 1508.04025.
"""

from __future__ import annotations

from dataclasses import replace

from attention_impls.makers import recast
from attention_impls.through import softmax_kernel
from attention_impls.variants.scores.softmax import SOFTMAX


def _unscaled(head_dim: int) -> float:
    return 1.0


DOT = replace(
    SOFTMAX,
    name="dot",
    scale=_unscaled,
    paper="Luong et al. 2015, arXiv 1508.04025",
    formula="A = softmax(q kᵀ)",
)

IMPLEMENTATIONS = recast(DOT, lambda call: call, softmax_kernel("naive"), softmax_kernel("sdpa_flash"))
