"""Factorised random Synthesizer: one learned map of positions for each head, the same for every input.

A = softmax over visible keys of scale · R_1 R_2ᵀ, R_1 [H, I, R], R_2 [H, J, R] learned: no token is compared with
any. Queries and keys are not read; the mechanism is bound to the lengths. scale = 1 (the paper has none). With rank
R ≥ min(I, J) any matrix of logits can be had, which is the paper's unfactorised random Synthesizer.

Source: Tay et al. 2020, "Synthesizer: Rethinking Self-Attention in Transformer Models", arXiv 2005.00743, whose
rank is 8. `naive` takes one softmax for the whole batch where the mask does not tell sequences apart. Option: rank,
the size R.
"""

from __future__ import annotations

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
    logits = torch.einsum("hir,hjr->hij", call.parameters["r_1"][:, rows], call.parameters["r_2"]) * call.scale
    return logits.expand(call.q.shape[0], -1, -1, -1)


def _quarter(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal with variance R^-1/2: logits of unit variance."""
    drawn: Tensor = torch.randn(shape, generator=generator) * shape[2] ** -0.25
    return drawn


def _naive(call: Call, lse: bool) -> Run:
    """One map [1, H, I, J] for all sequences, or [B, H, I, J] where their masks differ."""
    mask = call.mask.simplified().to(call.q.device)
    visible, softmax = mask.visible(), softmax_for(mask)

    def run(call: Call) -> Output:
        maps = (call.parameters["r_1"] @ call.parameters["r_2"].mT * call.scale).unsqueeze(0)
        logits = hide(maps, visible)
        out = softmax(logits) @ repeat_heads(call.v, call.q.shape[1])
        return Output(out, lse_rows(logits).expand(out.shape[:3]) if lse else None)

    return run


def _as_softmax(call: Call) -> Call:
    """R_1 as queries and R_2 as keys of every sequence."""
    q, k = (call.parameters[name].expand(call.q.shape[0], -1, -1, -1) for name in ("r_1", "r_2"))
    return replace(call, q=q, k=k, v=repeat_heads(call.v, call.q.shape[1]), parameters={}, axes={})


def implementations(rank: int = 8) -> list[Implementation]:
    """The two forms with factors of `rank` columns. Raises ValueError for a rank below 1."""
    size = {"R": checked("rank", rank)}
    variant = softmax_of(
        "synthesizer_random",
        _logits,
        parameters={
            "r_1": Parameter("H I R", "weight", draw=_quarter, sizes=size),
            "r_2": Parameter("H J R", "weight", draw=_quarter, sizes=size),
        },
        scale=one,
        paper="Tay et al. 2020, arXiv 2005.00743",
        formula="A = softmax(R_1 R_2ᵀ)",
        cost="time O(I·J·(R+E)); memory O(I·J) a head for the whole batch naive, O(I·(R+E)) tiled",
    )
    naive = Implementation("naive", variant, _naive, Support(lse="differentiable"))
    return [naive, through(tiles(), variant, _as_softmax, lambda out, call: out)]
