"""Attention from any score of a query and a key, every score in memory at once; `scored_tiles` has its tiled form.

A mechanism gives its `Score`. Where its variant joins by "sum" the scores are the weights themselves, else their
softmax over the visible keys is. Exact, in float32 at least.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, softmax_for, wide
from attention_impls.contract import Implementation, Lse, Output, Run, Support, Variant

Score = Callable[[Call], Tensor]
"""A call or a tile of one, its heads expanded, in float32 at least -> scores [B, H, R, C]; it hides nothing."""


def naive(variant: Variant, score: Score) -> Implementation:
    """Every score in memory, O(I·J), and one product with v."""
    summed = variant.join == "sum"

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        visible, softmax = mask.visible(), softmax_for(mask)

        def run(call: Call) -> Output:
            whole = call.expanded().map(wide)
            if summed:
                return Output((shown(score(whole), visible) @ whole.v).to(call.q.dtype))
            logits = hide(wide(score(whole)), visible)
            return Output((softmax(logits) @ whole.v).to(call.q.dtype), lse_rows(logits) if lse else None)

        return run

    return Implementation("naive", variant, prepare, Support(lse=lse_of(variant)))


def dot(part: Call) -> Tensor:
    """The score scale · q kᵀ."""
    scores: Tensor = (part.q * part.scale) @ part.k.mT
    return scores


def as_called(score: Score, device: str) -> Score:
    """The score under the autocast of now, in the backward as in the forward: the LSE is that of these scores."""
    if not torch.is_autocast_enabled(device):
        return score
    dtype = torch.get_autocast_dtype(device)

    def rounded(part: Call) -> Tensor:
        with torch.autocast(device, dtype):
            return wide(score(part))

    return rounded


def shown(weights: Tensor, visible: Tensor | None) -> Tensor:
    """Weights with 0 where `visible` (bool, broadcast) is False."""
    return weights if visible is None else weights.masked_fill(~visible, 0.0)


def lse_of(variant: Variant) -> Lse:
    """What both forms can say of the log-sum-exp: all there is to be said where the variant has one."""
    return "no" if variant.lse is None else "differentiable"
