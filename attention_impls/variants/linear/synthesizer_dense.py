"""Dense Synthesizer: each token predicts its own row of logits, without looking at any key.

A = softmax over visible keys of scale · (relu(q W_1 + b_1) W_2 + b_2), W_1 [H, D, A], b_1 [H, A], W_2 [H, A, J],
b_2 [H, J] learned: key j has a logit for its position, whatever stands there, so the mechanism is bound to the
length. Keys are not read. scale = 1 (the paper has none). With W_2 = 0 and b_2 = 0 every row is the mean of the
values seen.

Source: Tay et al. 2020, "Synthesizer: Rethinking Self-Attention in Transformer Models", arXiv 2005.00743. Since
logits are products of A hidden units with columns of W_2, tiled softmax kernels compute it too, with the hidden
units as queries, W_2ᵀ as keys, and one element more on both for b_2. Option: hidden, the size A.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_for
from attention_impls.contract import Implementation, Output, Parameter, Run, Support
from attention_impls.makers import softmax_of
from attention_impls.through import through
from attention_impls.tiling import checked
from attention_impls.undefined import one
from attention_impls.variants.exact.tiles import tiles


def _logits(call: Call, rows: Tensor) -> Tensor:
    p = call.parameters
    units = (torch.einsum("bhid,hda->bhia", call.q[:, :, rows], p["w_1"]) + p["b_1"][:, None]).relu()
    logits: Tensor = (torch.einsum("bhia,haj->bhij", units, p["w_2"]) + p["b_2"][:, None]) * call.scale
    return logits


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal over the square root of the axis that is summed over, which a matrix has in the middle."""
    return torch.randn(shape, generator=generator) / math.sqrt(shape[1] if len(shape) == 3 else 1)


def _hidden(call: Call) -> Tensor:
    """[B, H, I, A]"""
    return (call.q @ call.parameters["w_1"] + call.parameters["b_1"][:, None]).relu()


def _naive(call: Call, lse: bool) -> Run:
    """All logits at once: [B, H, I, J]."""
    mask = call.mask.simplified().to(call.q.device)
    visible, softmax = mask.visible(), softmax_for(mask)

    def run(call: Call) -> Output:
        logits = _hidden(call) @ (call.parameters["w_2"] * call.scale)
        logits = hide(logits + (call.parameters["b_2"] * call.scale)[:, None], visible)
        out = softmax(logits) @ repeat_heads(call.v, call.q.shape[1])
        return Output(out, lse_rows(logits) if lse else None)

    return run


def _as_softmax(call: Call) -> Call:
    """Hidden units and a one as queries [B, H, I, A + 1], W_2ᵀ and b_2 as keys."""
    units = _hidden(call)
    queries = torch.cat([units, torch.ones_like(units[..., :1])], -1)
    keys = torch.cat([call.parameters["w_2"], call.parameters["b_2"][:, None]], 1).mT  # [H, J, A + 1]
    keys = keys.expand(call.q.shape[0], -1, -1, -1)
    return replace(call, q=queries, k=keys, v=repeat_heads(call.v, call.q.shape[1]), parameters={}, axes={})


def implementations(hidden: int = 64) -> list[Implementation]:
    """The two forms with `hidden` units. Raises ValueError for fewer than one."""
    size = {"A": checked("hidden", hidden)}
    variant = softmax_of(
        "synthesizer_dense",
        _logits,
        parameters={
            "w_1": Parameter("H D A", "weight", draw=_draw, sizes=size),
            "b_1": Parameter("H A", "weight", draw=_draw, sizes=size),
            "w_2": Parameter("H A J", "weight", draw=_draw, sizes=size),
            "b_2": Parameter("H J", "weight", draw=_draw),
        },
        scale=one,
        paper="Tay et al. 2020, arXiv 2005.00743",
        formula="A = softmax(relu(q W_1 + b_1) W_2 + b_2)",
        cost="time O(I·A·D + I·J·(A+E)); memory O(I·J) naive, O(I·(A+E) + J·A) tiled",
    )
    naive = Implementation("naive", variant, _naive, Support(lse="differentiable"))
    return [naive, through(tiles(), variant, _as_softmax, lambda out, call: out)]
