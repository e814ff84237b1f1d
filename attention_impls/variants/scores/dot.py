"""Dot-product attention (Luong's "dot"): A = softmax(q kᵀ), unscaled.

Softmax attention with scale 1: at D = 64 the logits of unit normal inputs have standard deviation 8, and
rows are nearly one-hot. A scale given by the caller is applied; D^-1/2 gives scaled dot-product attention.

Source: Luong, Pham and Manning 2015, arXiv 1508.04025.
"""

from __future__ import annotations

from dataclasses import replace

from attention_impls.makers import through
from attention_impls.variants.scores.softmax import IMPLEMENTATIONS as SOFTMAX_IMPLEMENTATIONS
from attention_impls.variants.scores.softmax import SOFTMAX

TAKEN = ("naive", "sdpa_flash")


def _unscaled(head_dim: int) -> float:
    return 1.0


DOT = replace(
    SOFTMAX,
    name="dot",
    scale=_unscaled,
    paper="Luong et al. 2015, arXiv 1508.04025",
    formula="A = softmax(q kᵀ)",
)

IMPLEMENTATIONS = through(DOT, lambda call: call, *(i for i in SOFTMAX_IMPLEMENTATIONS if i.name in TAKEN))
