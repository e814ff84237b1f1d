"""Query-key normalisation: A = softmax(scale · g · q̂ k̂ᵀ), q̂ and k̂ of unit length, one learned number g; scale = 1.

g takes the place of D^-1/2. Source: Henry et al. 2020, "Query-Key Normalization for Transformers", arXiv 2010.04245,
where g begins at log2(L² − L) for sequences of length L: 14 for 128; it is drawn around that. Other code learns one
number a head, or none (10). With g = 1/τ for every head it is `cosine`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Parameter
from attention_impls.makers import softmax_of
from attention_impls.scored import naive
from attention_impls.scored_tiles import tiled
from attention_impls.through import softmax_kernel, through
from attention_impls.variants.scores.cosine import cosines, unit, unscaled


def _logits(call: Call, rows: Tensor) -> Tensor:
    return cosines(call, rows) * call.scale * call.parameters["g"]


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return 14.0 + torch.randn(shape, generator=generator)


QK_NORM = softmax_of(
    "qk_norm",
    _logits,
    parameters={"g": Parameter("", "weight", draw=_draw)},
    scale=unscaled,
    paper="Henry et al. 2020, arXiv 2010.04245",
    formula="A = softmax(g · q̂ k̂ᵀ), q̂ = q/|q|, k̂ = k/|k|",
    cost="as softmax, and O((I+J)·D) for the norms",
)


def _score(part: Call) -> Tensor:
    scores: Tensor = (unit(part.q) * (part.parameters["g"] * part.scale)) @ unit(part.k).mT
    return scores


def _normalised(call: Call) -> Call:
    """The call of softmax whose queries are g·q̂ and whose keys are k̂.

    On CPU half precision runs in float32: g's gradient is one sum over all queries, nearly all of which cancels. On
    CUDA the kernel has no float32.
    """
    dtype = call.q.dtype if call.where == "cuda" else torch.promote_types(call.q.dtype, torch.float32)
    q, k = unit(call.q) * call.parameters["g"], unit(call.k)
    return replace(call, q=q.to(dtype), k=k.to(dtype), v=call.v.to(dtype), parameters={}, axes={})


def _narrowed(out: Tensor, call: Call) -> Tensor:
    return out.to(call.q.dtype)


IMPLEMENTATIONS = [
    naive(QK_NORM, _score),
    tiled(QK_NORM, _score),
    through(softmax_kernel("sdpa_flash"), QK_NORM, _normalised, _narrowed),
]
