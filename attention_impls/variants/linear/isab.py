"""Induced set attention: learned inducing points attend to the tokens, and the tokens attend to the points.

S = softmax(scale · l kᵀ) [P, J] over visible keys; A = softmax(scale · q (l + S k)ᵀ) S, l [G, P, D] learned: a
point is read under its own key plus what it gathered (the residual of the paper's first block), and answers with
the values it gathered. Rows sum to 1. A function of its own, linear in I and J. Where the points' keys are what
they gathered alone it is `luna`; where they are l alone, agent attention with learned agents. With P = 1 every
query gets the same row.

Sources: Lee et al. 2019, "Set Transformer", arXiv 1810.00825 (ISAB); Jaegle et al. 2021, "Perceiver", arXiv
2103.03206 (its cross-attention is the first half). Left out: projections, norms and feed-forwards between the two
halves, and the residual's share of the values, a learned constant. Option: points, the size P. Gathering mixes all
positions: masks must hide the same keys from every query.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads, softmax_rows
from attention_impls.contract import Implementation, Parameter, Variant
from attention_impls.low_rank import SAME_KEYS, OverKeys, low_rank
from attention_impls.tiling import checked


def _weights(call: Call, rows: Tensor) -> Tensor:
    points = call.parameters["points"]
    gather = softmax_rows(hide(points @ call.k.mT * call.scale, call.mask.visible(rows[:1])))
    return torch.softmax(call.q[:, :, rows] @ (points + gather @ call.k).mT * call.scale, -1) @ gather


def _factors(call: Call, over_keys: OverKeys) -> tuple[Tensor, Tensor]:
    points = call.parameters["points"] * call.scale
    gather = over_keys(points @ call.k.mT)  # [B, G, P, J]
    keys = torch.add(points, gather @ call.k, alpha=call.scale)
    return torch.softmax(call.q @ repeat_heads(keys, call.q.shape[1]).mT, -1), gather


def implementations(points: int = 64) -> list[Implementation]:
    """The two forms with `points` inducing points. Raises ValueError for fewer than one."""
    variant = Variant(
        "isab",
        weights=_weights,
        parameters={"points": Parameter("G P D", "weight", sizes={"P": checked("points", points)})},
        couples=frozenset({"keys"}),
        masks=SAME_KEYS,
        paper="Lee et al. 2019, arXiv 1810.00825; Jaegle et al. 2021, arXiv 2103.03206",
        formula="A = softmax(scale · q (l + S k)ᵀ) S, S = softmax(scale · l kᵀ)",
        cost="time O((I+J)·P·(D+E)), memory O((I+J)·P)",
    )
    return low_rank(variant, _factors)
