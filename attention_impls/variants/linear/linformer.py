"""Linformer: keys and values projected along the sequence to a fixed number of rows, then softmax over those.

A = softmax(scale · q (E k)ᵀ) F, with E, F [P, J] learned, bound to the length and shared by batch and heads
("headwise sharing" of the paper). Not row-stochastic: rows of F need not sum to 1. Approximates `softmax`
(low rank), which it is exactly when P = J and E = F = identity. Source: Wang et al. 2020, "Linformer:
Self-Attention with Linear Complexity", arXiv 2006.04768. Option: rank, the size P.
Each projected key mixes all positions, so there is no causal form and no true mask of keys.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Parameter, Variant
from attention_impls.mask import full_mask
from attention_impls.through import softmax_kernel, through


def _averaging(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal over √J, so that a projected key is as long as a key."""
    return torch.randn(shape, generator=generator) / math.sqrt(shape[1])


def _weights(call: Call, rows: Tensor) -> Tensor:
    projected = call.parameters["e"] @ call.k  # [B, H, P, D]
    logits = call.q[:, :, rows] @ projected.mT * call.scale
    return torch.softmax(logits, -1) @ call.parameters["f"]


def _masked(call: Call) -> str | None:
    if call.mask.full:
        return None
    return "linformer has no masked or causal form: each of its projected keys mixes all positions"


def _projected(call: Call) -> Call:
    """Softmax attention over the P projected keys and values."""
    k, v = call.parameters["e"] @ call.k, call.parameters["f"] @ call.v
    return replace(call, k=k, v=v, parameters={}, axes={})


def implementations(rank: int = 64) -> list[Implementation]:
    """Projection, then each softmax kernel over `rank` rows. Raises ValueError for a rank below 1."""
    if rank < 1:
        raise ValueError(f"rank must be at least 1; got {rank}")
    projection = Parameter("P J", "weight", draw=_averaging, sizes={"P": rank})
    variant = Variant(
        "linformer",
        weights=_weights,
        parameters={"e": projection, "f": projection},
        couples=frozenset({"keys"}),
        masks=frozenset({"full"}),
        row_stochastic=False,
        why_not=_masked,
        paper="Wang et al. 2020, arXiv 2006.04768",
        formula="A = softmax(scale · q (E k)ᵀ) F",
        cost="time O((I+J)·P·(D+E)), memory O(I·P)",
        approximates="softmax",
    )
    kernels = [softmax_kernel(name) for name in ("naive", "sdpa_math", "sdpa_flash", "sdpa_efficient")]
    return [
        replace(
            through(kernel, variant, _projected, lambda out, call: out, mask=lambda mask: full_mask(mask.q_len, rank)),
            growth=Growth(1, 1, "rank fixed"),
        )
        for kernel in kernels
    ]
