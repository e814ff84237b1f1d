"""Additive (Bahdanau) attention: A = softmax over keys of vᵀ tanh(W_q q + W_k k + b), values unprojected.

Per query head: w_q [H, D, A], b and score (the v of the formula) [H, A]; per key/value head: w_k [G, D, A].
The paper has no scale; one given by the caller multiplies the logits. It equals Luong's "concat" form with
W = [W_q W_k]. Logits are bounded by the sum of |v|. Weights are drawn so that the logits have unit variance
at most. `chunked` works in float32 at least, `broadcast` in the inputs' own numbers.

Sources: Bahdanau, Cho and Bengio 2014, arXiv 1409.0473; concat form: Luong et al. 2015, arXiv 1508.04025.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_for
from attention_impls.contract import Implementation, Output, Parameter, Run, Support, Variant
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
    return torch.randn(shape, generator=generator) / shape[-2 if len(shape) == 3 else -1] ** 0.5


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


def _scores(queries: Tensor, keys: Tensor, score: Tensor, scale: float) -> Tensor:
    """[B, H, R, A] and [B, H, J, A] -> [B, H, R, J], through one [B, H, R, J, A]."""
    hidden = (queries[:, :, :, None] + keys[:, :, None]).tanh_()
    return (hidden @ (score * scale)[:, None, :, None]).squeeze(-1)


def _broadcast(call: Call, lse: bool) -> Run:
    """All pairs and all hidden units at once: [B, H, I, J, A]."""
    mask = call.mask.simplified().to(call.q.device)
    visible, softmax = mask.visible(), softmax_for(mask)

    def run(call: Call) -> Output:
        keys, values = _keys(call)
        logits = hide(_scores(_queries(call), keys, call.parameters["score"], call.scale), visible)
        return Output(softmax(logits) @ values, lse_rows(logits) if lse else None)

    return run


def chunked(variant: Variant, block: int = 64) -> Implementation:
    """Chunks of `block` queries against the keys they can see, each computed again in the backward."""
    checked("block", block)

    def configure(block: int = 64) -> Implementation:
        return chunked(variant, block)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        plan = [_chunk(mask, lo, hi) for lo, hi in spans(mask.q_len, block)]

        def run(call: Call) -> Output:
            queries, (keys, values) = _queries(call), _keys(call)
            score = call.parameters["score"]
            parts = [
                checkpoint(  # nothing random inside: no random state need be kept
                    _attend,
                    queries[:, :, lo:hi],
                    keys[:, :, : part.kv_len],
                    values[:, :, : part.kv_len],
                    score,
                    call.scale,
                    visible,
                    softmax_for(part),
                    lse,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
                for lo, hi, part, visible in plan
            ]
            out = torch.cat([part.out for part in parts], 2)
            return Output(out, torch.cat([part.lse for part in parts], 2) if lse else None)

        return run

    return Implementation("chunked", variant, prepare, Support(lse="differentiable"), configure=configure)


def _chunk(mask: Mask, lo: int, hi: int) -> tuple[int, int, Mask, Tensor | None]:
    """Query rows lo..hi, their mask trimmed to the keys that any of them may see, and its boolean form."""
    rows = mask.rows(lo, hi)
    part = rows.keys(0, rows.last_visible()).simplified()
    return lo, hi, part, part.visible()


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    score: Tensor,
    scale: float,
    visible: Tensor | None,
    softmax: Callable[[Tensor], Tensor],
    lse: bool,
) -> Output:
    logits = hide(_scores(queries, keys, score, scale), visible)
    return Output(softmax(logits) @ values, lse_rows(logits) if lse else None)
