"""Transformer-XL's relative positions: a sinusoid of the distance, projected, and two biases in place of positions.

L_ij = scale · ((q_i + u)·k_j + (q_i + w)·W_R r_{i−j}),  A = softmax(L),  r_x = [sin(x θ), cos(x θ)] with M numbers,
θ_m = 10000^(−2m/M). Per query head: u content_bias and w position_bias [H, D], W_R as w_r [H, M, D]; M = H·D, the
model's width, must be even. Distances may have either sign (XLNet); with a causal mask this is the paper's. Keys of a
memory are keys that stand before the first query. With u = 0 and W_R = 0 it is `softmax`.
`naive` projects every distance that occurs and looks pairs up. `tiled` projects those of one tile, in order, and
shifts row r of (q + w)·W_R r by r places (the paper's appendix B), so that nothing is looked up.
Source: Dai et al. 2019, "Transformer-XL", arXiv 1901.02860.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.biased import apart, descending, distances, placed, row_distances, shifted
from attention_impls.call import Call, hide, lse_rows, softmax_for, wide
from attention_impls.contract import Implementation, Output, Parameter, Run, Support
from attention_impls.makers import recast, softmax_of
from attention_impls.scored_tiles import tiled


def sinusoid(far: Tensor, like: Tensor, width: int) -> Tensor:
    """r of whole numbers [...] -> [..., width] in the dtype of `like`, from angles in float64."""
    theta = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=far.device) / width)
    angles = far.unsqueeze(-1) * theta
    return torch.cat([angles.sin(), angles.cos()], -1).to(like.dtype)


def _logits(call: Call, rows: Tensor) -> Tensor:
    """W_Rᵀ (q + w) first, then its product with every distance's sinusoid, row by row."""
    p, q, far = call.parameters, call.q[:, :, rows], row_distances(call, rows)
    content = (q + p["content_bias"][:, None]) @ call.k.mT
    turned = (q + p["position_bias"][:, None]) @ p["w_r"].mT  # [B, H, R, M]
    by_row = [
        turned[:, :, r, None] @ sinusoid(far[:, :, r], turned, turned.shape[-1]).mT  # [B, H, 1, J]
        for r in range(len(rows))
    ]
    return (content + torch.cat(by_row, 2)) * call.scale if by_row else content


def _draw_projection(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal, so that W_R r has unit variance: r has M/2 pairs of length 1."""
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-2] / 2)


def _uneven(call: Call) -> str | None:
    width = call.parameters["w_r"].shape[1]
    return "transformer_xl needs an even width H·D: a sinusoid holds pairs" if width % 2 else None


TRANSFORMER_XL = softmax_of(
    "transformer_xl",
    _logits,
    parameters={
        "content_bias": Parameter("H D", "weight"),
        "position_bias": Parameter("H D", "weight"),
        "w_r": Parameter(
            "H M D", "weight", draw=_draw_projection, sizes={"M": lambda workload: workload.heads * workload.head_dim}
        ),
    },
    why_not=_uneven,
    paper="Dai et al. 2019, arXiv 1901.02860",
    formula="A = softmax(scale · ((q_i + u)·k_j + (q_i + w)·W_R r_{i−j})), scale = D^-1/2",
    cost="time O(I·J·D + (I+J)·H·D²); memory O(H·I·J) naive, O(I) and one tile tiled",
)


def _naive(call: Call, lse: bool) -> Run:
    """Every score in memory, and a table of which distance each pair has, made in prepare."""
    mask = call.mask.simplified().to(call.q.device)
    visible, softmax = mask.visible(), softmax_for(mask)
    distinct, which = distances(placed(call)).unique(return_inverse=True)

    def run(call: Call) -> Output:
        own = call.expanded().map(wide)
        p = own.parameters
        projected = sinusoid(distinct, own.q, p["w_r"].shape[1]) @ p["w_r"]  # [H, distances, D]
        by_distance = (own.q + p["position_bias"][:, None]) @ projected.mT
        shape = (*own.q.shape[:3], own.k.shape[2])
        content = (own.q + p["content_bias"][:, None]) @ own.k.mT
        logits = hide((content + by_distance.gather(-1, which.expand(shape))) * own.scale, visible)
        return Output((softmax(logits) @ own.v).to(call.q.dtype), lse_rows(logits) if lse else None)

    return run


def _by_shift(part: Call) -> Tensor:
    """(q + w)·W_R r where queries stand side by side."""
    p = part.parameters
    projected = sinusoid(descending(part), part.q, p["w_r"].shape[1])[:, None] @ p["w_r"]  # [1|B, H, R + C, D]
    return shifted((part.q + p["position_bias"][:, None]) @ projected.mT, part.k.shape[2])


def _by_pair(part: Call) -> Tensor:
    """The same where every token has a position of its own: pair by pair."""
    p = part.parameters
    turned = (part.q + p["position_bias"][:, None]) @ p["w_r"].mT  # [B, H, R, M]
    pairs = sinusoid(distances(part)[:, 0], part.q, turned.shape[-1])  # [1|B, R, C, M]
    scores: Tensor = (pairs[:, None] @ turned[..., None]).squeeze(-1)
    return scores


def _score(part: Call) -> Tensor:
    content = (part.q + part.parameters["content_bias"][:, None]) @ part.k.mT
    return (content + (_by_pair(part) if apart(part) else _by_shift(part))) * part.scale


IMPLEMENTATIONS = [
    Implementation("naive", TRANSFORMER_XL, _naive, Support(lse="differentiable")),
    *recast(TRANSFORMER_XL, placed, tiled(TRANSFORMER_XL, _score)),
]
