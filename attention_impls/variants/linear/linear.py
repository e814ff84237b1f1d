"""Linear attention: A_ij = φ(q_i)·φ(k_j) / Σ_visible φ(q_i)·φ(k_j), φ(x) = elu(x) + 1 > 0.

A function of its own, not an approximation of softmax; it has no scale. Every similarity is positive, so
a row is also the softmax of log φ(q)·φ(k): its log-sum-exp is the logarithm of the denominator, and
results over disjoint keys join by it. A query that sees no key gives zeros and -inf. With one visible key
it is softmax attention: both give that key's value. The number of products falls from I·J·D to I·D·E
because the sums over keys, S = Σ φ(k) vᵀ [D, E] and z = Σ φ(k) [D], do not depend on the query.

Source: Katharopoulos et al. 2020, "Transformers are RNNs", arXiv 2006.16236.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Variant
from attention_impls.linearised import Feature, linearised, log_weight, normalised


def _phi(x: Tensor) -> Tensor:
    """elu(x) + 1 without the cancellation of that sum for large negative x: e^min(x, 0) + max(x, 0)."""
    return x.clamp(max=0.0).exp() + x.relu()


def _similar(call: Call, rows: Tensor) -> Tensor:
    s: Tensor = _phi(call.q[:, :, rows]) @ _phi(call.k).mT
    visible = call.mask.visible(rows)
    return s if visible is None else s.masked_fill(~visible, 0.0)


def _weights(call: Call, rows: Tensor) -> Tensor:
    s = _similar(call, rows)
    return normalised(s, s.sum(-1, keepdim=True))


def _lse(call: Call, rows: Tensor) -> Tensor:
    return log_weight(_similar(call, rows).sum(-1, keepdim=True))


def _no_scale(call: Call) -> str | None:
    return None if call.scale == 1.0 else f"linear has no scale of logits; got {call.scale:.4g}, it must be 1"


def _one(head_dim: int) -> float:
    return 1.0


LINEAR = Variant(
    "linear",
    weights=_weights,
    lse=_lse,
    join="lse",
    scale=_one,
    why_not=_no_scale,
    paper="Katharopoulos et al. 2020, arXiv 2006.16236",
    formula="A = φ(q) φ(k)ᵀ over its row sums, φ = elu + 1",
    cost="time O(I·J·D) quadratic, O((I+J)·D·E) parallel and chunked; memory O(I·J), or a state of D·E and one chunk",
)


def _features(call: Call) -> tuple[Feature, Feature]:
    """φ for queries and for keys, in float32 at least: the sums overflow half precision."""

    def wide(x: Tensor) -> Tensor:
        return _phi(x.to(torch.promote_types(x.dtype, torch.float32)))

    return wide, wide


IMPLEMENTATIONS = linearised(LINEAR, _features)
