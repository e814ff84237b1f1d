"""Additive (Bahdanau) attention: A = softmax over keys of vᵀ tanh(W_q q + W_k k + b), values unprojected.

Per query head: w_q [H, D, A], b and score (the v of the formula) [H, A]; per key/value head: w_k [G, D, A].
The paper has no scale; one given by the caller multiplies the logits. It equals Luong's "concat" form with
W = [W_q W_k]. Logits are bounded by the sum of |v|. Weights are drawn so that the logits have unit variance
at most. `chunked` works in float32 at least, `broadcast` in the inputs' own numbers.

Sources: Bahdanau, Cho and Bengio 2014, arXiv 1409.0473; concat form: Luong et al. 2015, arXiv 1508.04025.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_for
from attention_impls.contract import Growth, Implementation, Output, Parameter, Run, Support, Variant
from attention_impls.makers import softmax_of
from attention_impls.mask import Mask
from attention_impls.tiling import checked, spans


def _logits(call: Call, rows: Tensor) -> Tensor:
    p = call.parameters
    queries = torch.einsum("bhid,hda->bhia", call.q[:, :, rows], p["w_q"])
    keys = torch.einsum("bhjd,hda->bhja", call.k, p["w_k"])
    hidden = torch.tanh(queries[:, :, :, None] + keys[:, :, None] + p["b"][:, None, None])
    logits: Tensor = torch.einsum("bhija,ha->bhij", hidden, p["score"]) * call.scale
    return logits


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal, divided by the square root of the axis that is summed over."""
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-2 if len(shape) == 3 else -1])


def _unscaled(head_dim: int) -> float:
    return 1.0


def implementations(hidden: int = 16) -> list[Implementation]:
    """Additive attention with `hidden` units. Raises ValueError for fewer than 1."""
    size = {"A": checked("hidden", hidden)}
    variant = softmax_of(
        "additive",
        _logits,
        parameters={
            "w_q": Parameter("H D A", "weight", draw=_draw, sizes=size),
            "w_k": Parameter("G D A", "weight", draw=_draw, sizes=size),
            "score": Parameter("H A", "weight", draw=_draw, sizes=size),
            "b": Parameter("H A", "weight", draw=_draw, sizes=size),
        },
        scale=_unscaled,
        paper="Bahdanau et al. 2014, arXiv 1409.0473",
        formula="A = softmax(vᵀ tanh(W_q q + W_k k + b))",
        cost="time O(I·J·A); memory O(I·J·A) broadcast, O(block·J·A) chunked",
    )
    return [Implementation("broadcast", variant, _broadcast, Support(lse="differentiable")), chunked(variant)]


def _keys(call: Call) -> tuple[Tensor, Tensor]:
    """Projected keys [B, H, J, A] and values [B, H, J, E], each repeated for the query heads that read them."""
    heads = call.q.shape[1]
    return repeat_heads(call.k @ call.parameters["w_k"], heads), repeat_heads(call.v, heads)


def _queries(call: Call) -> Tensor:
    """Projected queries with the bias [B, H, I, A]."""
    return call.q @ call.parameters["w_q"] + call.parameters["b"][:, None]


def _score(call: Call) -> Tensor:
    """The vector that weighs hidden units [H, A], times the scale."""
    return call.parameters["score"] * call.scale


def _logits_of(queries: Tensor, keys: Tensor, score: Tensor, visible: Tensor | None) -> Tensor:
    """[B, H, R, A] and [B, H, J, A] -> [B, H, R, J], through one [B, H, R, J, A]."""
    hidden = (queries[:, :, :, None] + keys[:, :, None]).tanh_()
    return hide((hidden @ score[:, None, :, None]).squeeze(-1), visible)


def _broadcast(call: Call, lse: bool) -> Run:
    """All pairs and all hidden units at once: [B, H, I, J, A]."""
    mask = call.mask.simplified().to(call.q.device)
    visible, softmax = mask.visible(), softmax_for(mask)

    def run(call: Call) -> Output:
        keys, values = _keys(call)
        logits = _logits_of(_queries(call), keys, _score(call), visible)
        return Output(softmax(logits) @ values, lse_rows(logits) if lse else None)

    return run


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Query rows lo..hi, how many keys any of them may see, their boolean form and softmax."""

    lo: int
    hi: int
    keys: int
    visible: Tensor | None
    softmax: Callable[[Tensor], Tensor]


def chunked(variant: Variant, block: int = 64) -> Implementation:
    """Chunks of `block` queries against the keys they may see, each computed again in the backward."""
    checked("block", block)

    def configure(block: int = 64) -> Implementation:
        return chunked(variant, block)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        plan = [_chunk(mask, lo, hi) for lo, hi in spans(mask.q_len, block)]
        return lambda call: _in_chunks(call, plan, lse)

    return Implementation(
        "chunked", variant, prepare, Support(lse="differentiable"), configure=configure, growth=Growth(bytes=1)
    )


def _chunk(mask: Mask, lo: int, hi: int) -> _Chunk:
    rows = mask.rows(lo, hi)
    part = rows.keys(0, rows.last_visible()).simplified()
    return _Chunk(lo, hi, part.kv_len, part.visible(), softmax_for(part))


def _in_chunks(call: Call, plan: list[_Chunk], lse: bool) -> Output:
    wide = call.map(lambda t: t.to(torch.promote_types(t.dtype, torch.float32)))
    queries, (keys, values), score = _queries(wide), _keys(wide), _score(wide)
    parts: list[Output] = [
        checkpoint(  # nothing random inside: no random state need be kept
            _attend, queries, keys, values, score, chunk, lse, use_reentrant=False, preserve_rng_state=False
        )
        for chunk in plan
    ]
    out = torch.cat([part.out for part in parts], 2).to(call.q.dtype)
    return Output(out, torch.cat([part.lse for part in parts if part.lse is not None], 2) if lse else None)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, score: Tensor, chunk: _Chunk, lse: bool) -> Output:
    seen = slice(0, chunk.keys)
    logits = _logits_of(queries[:, :, chunk.lo : chunk.hi], keys[:, :, seen], score, chunk.visible)
    return Output(chunk.softmax(logits) @ values[:, :, seen], lse_rows(logits) if lse else None)
