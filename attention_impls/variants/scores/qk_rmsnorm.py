"""RMS-normalised queries and keys: A = softmax(scale · n_q(q) n_k(k)ᵀ), n(x) = gain ⊙ x / sqrt(mean(x²) + 1e-6).

Means over the D numbers of a head; gain_q and gain_k [D] are learned and shared by the heads; scale = D^-1/2 stays.
Sources: Dehghani et al. 2023 (ViT-22B), arXiv 2302.05442, with layer norms; Yang et al. 2025 (Qwen3), arXiv
2505.09388, with RMS norms over each head as here (OLMo 2 takes them over all heads together, before the split). With
both gains 1, and but for the 1e-6, it is `qk_norm` with g = sqrt(D).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from attention_impls.call import Call, wide
from attention_impls.contract import Parameter
from attention_impls.makers import recast, softmax_of
from attention_impls.scored import dot, naive
from attention_impls.scored_tiles import tiled
from attention_impls.through import softmax_kernel

EPS = 1e-6


def _divided(x: Tensor) -> Tensor:
    """x / sqrt(mean(x²) + eps), squares taken in float32 at least."""
    x = wide(x)
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def _logits(call: Call, rows: Tensor) -> Tensor:
    q = (_divided(call.q[:, :, rows]) * call.parameters["gain_q"]).to(call.q.dtype)
    k = (_divided(call.k) * call.parameters["gain_k"]).to(call.k.dtype)
    return q @ k.mT * call.scale


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return 1.0 + 0.1 * torch.randn(shape, generator=generator)


_GAIN = Parameter("D", "weight", draw=_draw)

QK_RMSNORM = softmax_of(
    "qk_rmsnorm",
    _logits,
    parameters={"gain_q": _GAIN, "gain_k": _GAIN},
    paper="Dehghani et al. 2023, arXiv 2302.05442; Yang et al. 2025, arXiv 2505.09388",
    formula="A = softmax(scale · n_q(q) n_k(k)ᵀ), n(x) = gain ⊙ x / rms(x), scale = D^-1/2",
    cost="as softmax, and O((I+J)·D) for the norms",
)


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    x = wide(x)
    return rms_norm(x, x.shape[-1:], gain.to(x.dtype), EPS)


def _normalised(call: Call) -> Call:
    """The call of softmax whose queries and keys are the normalised ones."""
    q, k = _norm(call.q, call.parameters["gain_q"]), _norm(call.k, call.parameters["gain_k"])
    return replace(call, q=q.to(call.q.dtype), k=k.to(call.k.dtype), parameters={}, axes={})


def _score(part: Call) -> Tensor:
    """Normalised tile by tile: what is normalised is nowhere written whole."""
    return dot(_normalised(part))


IMPLEMENTATIONS = [
    naive(QK_RMSNORM, _score),
    tiled(QK_RMSNORM, _score),
    *recast(QK_RMSNORM, _normalised, softmax_kernel("sdpa_flash")),
]
