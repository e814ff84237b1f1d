"""Nyströmformer: softmax attention rebuilt from its products with a few landmarks.

A = F Z B, F = softmax(scale · q k̃ᵀ) [I, M], B = softmax(scale · q̃ kᵀ) [M, J], Z the iterative pseudo-inverse of
softmax(scale · q̃ k̃ᵀ) [M, M]. Landmarks q̃, k̃ [M, D] are means of M runs of tokens as even as can be (longer ones
first), M = min(landmarks, I, J). Z_0 = Kᵀ / (‖K‖₁ ‖K‖∞), Z ← ¼ Z (13 − KZ (15 − KZ (7 − KZ))), `iterations` times.

Approximates `softmax`, which it is when every token is a landmark and the iteration has converged. Source: Xiong et
al. 2021, "Nyströmformer", arXiv 2102.03902, without its depthwise convolution of the values. ‖K‖₁ is each matrix's
own; published code takes the largest of the batch, so that one sequence moves another. Libraries pad the sequence
to a multiple of M; here runs differ by one token. Rows of A need not sum to 1. Options: landmarks, iterations. Each
landmark mixes tokens, later ones too: no causal form, no masks.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, repeat_heads
from attention_impls.contract import Implementation, Variant
from attention_impls.low_rank import OverKeys, low_rank, segment_means
from attention_impls.tiling import checked


def _means(x: Tensor, count: int) -> Tensor:
    return torch.stack([run.mean(2) for run in x.tensor_split(count, 2)], 2)


def _pinv(kernel: Tensor, iterations: int) -> Tensor:
    """The pseudo-inverse of a matrix with rows that sum to 1, as the paper iterates for it."""
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
    z = kernel.mT / kernel.abs().sum(-2).amax(-1)[..., None, None] / kernel.abs().sum(-1).amax(-1)[..., None, None]
    for _ in range(iterations):
        kz = kernel @ z
        z = z @ (13 * eye - kz @ (15 * eye - kz @ (7 * eye - kz))) / 4
    return z


def _weights(landmarks: int, iterations: int, call: Call, rows: Tensor) -> Tensor:
    count = min(landmarks, call.q.shape[2], call.k.shape[2])
    queries, keys = _means(call.q, count), _means(call.k, count)
    forth = torch.softmax(call.q[:, :, rows] @ keys.mT * call.scale, -1)
    back = torch.softmax(queries @ call.k.mT * call.scale, -1)
    return forth @ _pinv(torch.softmax(queries @ keys.mT * call.scale, -1), iterations) @ back


def _inverse(kernel: Tensor, iterations: int) -> Tensor:
    """The same iteration by powers, without an identity: Z ← (13 Z − 15 ZX + 7 ZX² − ZX³) / 4, X = KZ."""
    z = kernel.mT / kernel.sum(-2, keepdim=True).amax(-1, keepdim=True)  # rows of a softmax sum to 1: ‖K‖∞ = 1
    for _ in range(iterations):
        x = kernel @ z
        once = z @ x
        twice = once @ x
        z = (13 * z - 15 * once + 7 * twice - twice @ x) / 4
    return z


def _factors(landmarks: int, iterations: int, call: Call, over_keys: OverKeys) -> tuple[Tensor, Tensor]:
    heads, count = call.q.shape[1], min(landmarks, call.q.shape[2], call.k.shape[2])
    queries = segment_means(call.q, count) * call.scale
    keys = repeat_heads(segment_means(call.k, count), heads)
    kernel = torch.softmax(queries @ keys.mT, -1)
    forth = torch.softmax(call.q @ (keys * call.scale).mT, -1)
    return forth @ _inverse(kernel, iterations), over_keys(queries @ repeat_heads(call.k, heads).mT)


def implementations(landmarks: int = 64, iterations: int = 6) -> list[Implementation]:
    """The two forms. Raises ValueError for fewer than one landmark or iteration."""
    chosen = checked("landmarks", landmarks), checked("iterations", iterations)
    variant = Variant(
        "nystrom",
        weights=partial(_weights, *chosen),
        couples=frozenset({"queries", "keys"}),
        masks=frozenset({"full"}),
        row_stochastic=False,
        paper="Xiong et al. 2021, arXiv 2102.03902",
        formula="A = softmax(scale · q k̃ᵀ) pinv(softmax(scale · q̃ k̃ᵀ)) softmax(scale · q̃ kᵀ)",
        cost="time O((I+J)·M·(D+E) + M³), memory O((I+J)·M)",
        approximates="softmax",
    )
    return low_rank(variant, partial(_factors, *chosen))
