"""Cosine attention: A = softmax(scale · cos(q, k) / τ_h), τ [H] learned, never below 0.01; scale = 1.

Lengths of queries and keys do not count; a logit never exceeds 1/τ. A vector of zeros has cosine 0 with all.
Source: Liu et al. 2021 (Swin Transformer V2), arXiv 2111.09883, whose position bias is left out; τ begins at 0.1
there, around which it is drawn here. (Its code learns log 1/τ, clamped at the same bound.) With q and k of unit
length and τ = 1 it is `dot`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import normalize

from attention_impls.call import Call, wide
from attention_impls.contract import Parameter
from attention_impls.makers import recast, softmax_of
from attention_impls.scored import naive
from attention_impls.scored_tiles import tiled
from attention_impls.through import softmax_kernel

FLOOR = 0.01  # the paper's bound on τ
TINY = 1e-12  # a vector shorter than this is divided by it


def cosines(call: Call, rows: Tensor) -> Tensor:
    """The definition's cos(q, k) [B, H, R, J] of the query rows `rows` [R], heads expanded."""
    q, k = wide(call.q[:, :, rows]), wide(call.k)
    of_q, of_k = (vector_norm(x, dim=-1).clamp(min=TINY) for x in (q, k))  # [B, H, R], [B, H, J]
    found: Tensor = q @ k.mT / of_q[..., None] / of_k[..., None, :]
    return found.to(call.q.dtype)


def unit(x: Tensor) -> Tensor:
    """Rows of unit length, in float32 at least."""
    return normalize(wide(x), dim=-1, eps=TINY)


def _tau(call: Call) -> Tensor:
    """τ of every head [H, 1, 1]."""
    return call.parameters["tau"].clamp(min=FLOOR)[:, None, None]


def _logits(call: Call, rows: Tensor) -> Tensor:
    return cosines(call, rows) * call.scale / _tau(call)


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return 0.1 * (0.5 * torch.randn(shape, generator=generator)).exp()


def unscaled(head_dim: int) -> float:
    """1: the mechanism has a learned scale of its own."""
    return 1.0


COSINE = softmax_of(
    "cosine",
    _logits,
    parameters={"tau": Parameter("H", "weight", draw=_draw)},
    scale=unscaled,
    paper="Liu et al. 2021, arXiv 2111.09883",
    formula="A = softmax(cos(q, k) / max(τ_h, 0.01))",
    cost="as softmax, and O((I+J)·D) for the norms",
)


def _score(part: Call) -> Tensor:
    """Normalised tile by tile: no unit vector outlives its tile."""
    scores: Tensor = (unit(part.q) * (part.scale / _tau(part))) @ unit(part.k).mT
    return scores


def _normalised(call: Call) -> Call:
    """The call of softmax whose queries are q̂/τ and whose keys are k̂."""
    q, k = unit(call.q) / _tau(call), unit(call.k)
    return replace(call, q=q.to(call.q.dtype), k=k.to(call.k.dtype), parameters={}, axes={})


IMPLEMENTATIONS = [
    naive(COSINE, _score),
    tiled(COSINE, _score),
    *recast(COSINE, _normalised, softmax_kernel("sdpa_flash")),
]
