"""softmax.exp2: powers of two in place of e, with log2(e) folded into the scale: one factor a score less.

Exact: e^(scale·x) = 2^(scale·log2(e)·x), and processors compute powers of two. The scores are in units of log2;
the log-sum-exp goes back to natural logarithms at the end. Divided once, after the product with v. Materialised:
O(I·J) memory. Half precision is computed in float32.

Source: the kernels of Dao 2023 (FlashAttention-2), arXiv 2307.08691.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads, wide
from attention_impls.contract import Implementation, Output, Run, Support
from attention_impls.running import Sums, finite
from attention_impls.variants.scores.softmax import SOFTMAX

LOG2_E = math.log2(math.e)


def _prepare(call: Call, lse: bool) -> Run:
    visible = call.mask.simplified().to(call.q.device).visible()

    def run(call: Call) -> Output:
        sums = _sums(call, visible)
        unseen = torch.isneginf(sums.anchor)
        total = sums.total.masked_fill(unseen, 1.0)
        out = (sums.values / total).to(call.q.dtype)
        if not lse:
            return Output(out)
        natural = (finite(sums.anchor) + total.log2()) * math.log(2.0)
        return Output(out, natural.masked_fill(unseen, float("-inf")).squeeze(-1))

    return run


def _sums(call: Call, visible: Tensor | None) -> Sums:
    """Σ 2^(s − top)·v, Σ 2^(s − top) and top, for scores s in units of log2; no gradient flows through top."""
    heads = call.q.shape[1]
    queries = wide(call.q) * (call.scale * LOG2_E)
    scores = hide(queries @ repeat_heads(wide(call.k), heads).mT, visible)  # [B, H, I, J]
    top = scores.detach().amax(-1, keepdim=True)
    weights = (scores - finite(top)).exp2()
    return Sums(weights @ repeat_heads(wide(call.v), heads), weights.sum(-1, keepdim=True), top)


IMPLEMENTATIONS = [Implementation("exp2", SOFTMAX, _prepare, Support(lse="differentiable"))]
