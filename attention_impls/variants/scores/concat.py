"""Luong's "concat" attention: A = softmax over keys of vᵀ tanh(W [q; k]), values unprojected, unscaled.

Per query head: w [H, 2D, A], whose first D rows meet the query, and score (the v of the formula) [H, A]. With W cut
in two it is `additive` without its bias, which is how `chunked` computes it, with queries and keys projected once
instead of once a pair. Keras' "concat" has no W and a single number for v. A scale given by the caller multiplies the
logits. Source: Luong, Pham and Manning 2015, arXiv 1508.04025.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_rows, wide
from attention_impls.contract import Implementation, Output, Parameter
from attention_impls.makers import of, recast, softmax_of
from attention_impls.tiling import checked
from attention_impls.variants.scores import additive


def _logits(call: Call, rows: Tensor) -> Tensor:
    w, score = call.parameters["w"], call.parameters["score"]
    hidden = torch.tanh(_pairs(call.q[:, :, rows], call.k) @ w[:, None])
    return (hidden * score[:, None, None]).sum(-1) * call.scale


def _pairs(q: Tensor, k: Tensor) -> Tensor:
    """[B, H, I, D] and [B, H, J, D] -> [q; k] for every pair, [B, H, I, J, 2D]."""
    shape = (*q.shape[:3], k.shape[2], q.shape[3])
    return torch.cat([q.unsqueeze(3).expand(shape), k.unsqueeze(2).expand(shape)], -1)


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal, divided by the square root of the axis that is summed over."""
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-2 if len(shape) == 3 else -1])


def _unscaled(head_dim: int) -> float:
    return 1.0


def implementations(hidden: int = 16) -> list[Implementation]:
    """Concat attention with `hidden` units. Raises ValueError for fewer than 1."""
    units = checked("hidden", hidden)
    variant = softmax_of(
        "concat",
        _logits,
        parameters={
            "w": Parameter("H C A", "weight", draw=_draw, sizes={"A": units, "C": lambda w: 2 * w.head_dim}),
            "score": Parameter("H A", "weight", draw=_draw, sizes={"A": units}),
        },
        scale=_unscaled,
        paper="Luong et al. 2015, arXiv 1508.04025",
        formula="A = softmax(vᵀ tanh(W [q; k]))",
        cost="time O(I·J·D·A), memory O(I·J·(D + A)) pairs; time O(I·J·A), memory O(block·J·A) chunked",
    )
    split = next(i for i in additive.implementations(hidden) if i.name == "chunked")
    pairs = of(variant, _attend, lse_fn=partial(_attend, lse=True), name="pairs", lse="differentiable")
    return [pairs, *recast(variant, _split, split)]


def _attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, lse: bool = False, **given: Any) -> Output:
    """What the formula says, word by word: every pair is written, projected and squashed."""
    heads = q.shape[1]
    logits = hide(_scores(q, repeat_heads(k, heads), **given), mask)
    out = (softmax_rows(logits) @ wide(repeat_heads(v, heads))).to(q.dtype)
    return Output(out, lse_rows(logits) if lse else None)


def _scores(q: Tensor, k: Tensor, *, scale: float, w: Tensor, score: Tensor) -> Tensor:
    hidden = torch.tanh(torch.einsum("bhijc,hca->bhija", wide(_pairs(q, k)), wide(w)))
    return torch.einsum("bhija,ha->bhij", hidden, wide(score)) * scale


def _split(call: Call) -> Call:
    """The call of additive attention: W cut in two, no bias, every query head with keys of its own."""
    w, score = call.parameters["w"], call.parameters["score"]
    w_q, w_k = w.chunk(2, 1)
    parameters = {"w_q": w_q, "w_k": w_k, "score": score, "b": torch.zeros_like(score)}
    k, v = (repeat_heads(x, call.q.shape[1]) for x in (call.k, call.v))
    axes = {"w_q": "H D A", "w_k": "G D A", "score": "H A", "b": "H A"}
    return replace(call, k=k, v=v, parameters=parameters, axes=axes)
