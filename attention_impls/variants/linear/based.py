"""Based: linear attention with exp replaced by its Taylor polynomial of degree 2.

A_ij = (1 + s + s²/2) / Σ_visible, s = scale · q_i·k_j. The polynomial is ((1 + s)² + 1)/2 ≥ 1/2, so every weight is
positive. It is close to softmax attention where logits are small (its error is s³/6), and a function of its own
elsewhere: logits of −5 weigh 8.5. As features: 1, q and k, and the D(D+1)/2 distinct products of two of their
elements (those of different elements times √2), half of the D² that published kernels hold. A library adds 1e-6 to
the row sum; here nothing is added. Meant for small heads: D = 16 in the paper.

Source: Arora et al. 2024, "Simple linear attention language models balance the recall-throughput tradeoff", arXiv
2402.18668; the feature map: Zhang et al. 2024, arXiv 2402.04347. Its sliding window is a layer of its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Variant
from attention_impls.linearised import Feature, linearised, log_weight, normalised


def pairs(x: Tensor) -> Tensor:
    """[..., D] -> [..., D(D+1)/2] with pairs(x)·pairs(y) = (x·y)²: x_i², and √2 x_i x_j for i < j."""
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
    twice = torch.full_like(i, math.sqrt(2.0), dtype=x.dtype).masked_fill(i == j, 1.0)
    return x[..., i] * x[..., j] * twice


def _similar(call: Call, rows: Tensor) -> Tensor:
    logits = call.q[:, :, rows] @ call.k.mT * call.scale
    s = 1 + logits + logits.square() / 2
    visible = call.mask.visible(rows)
    return s if visible is None else s.masked_fill(~visible, 0.0)


def _weights(call: Call, rows: Tensor) -> Tensor:
    s = _similar(call, rows)
    return normalised(s, s.sum(-1, keepdim=True))


def _lse(call: Call, rows: Tensor) -> Tensor:
    return log_weight(_similar(call, rows).sum(-1, keepdim=True))


BASED = Variant(
    "based",
    weights=_weights,
    lse=_lse,
    join="lse",
    paper="Arora et al. 2024, arXiv 2402.18668",
    formula="A = (1 + s + s²/2) over its row sums, s = scale · q·k",
    cost="time O(I·J·D) or O((I+J)·D²·E/2); memory O(I·J), or a state of D²·E/2 and one chunk",
    approximates="softmax",
)


def _features(call: Call) -> tuple[Feature, Feature]:
    """[1, x, pairs(x)/√2], the scale on the queries; in float32 at least."""

    def taylor(x: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(x[..., :1]), x, pairs(x) / math.sqrt(2.0)], -1)

    def wide(x: Tensor) -> Tensor:
        return x.to(torch.promote_types(x.dtype, torch.float32))

    return lambda q: taylor(wide(q) * call.scale), lambda k: taylor(wide(k))


IMPLEMENTATIONS = linearised(BASED, _features)
