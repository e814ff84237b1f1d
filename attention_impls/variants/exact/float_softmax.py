"""softmax.float_softmax and softmax.float_scores: how much of a half-precision call is computed in float32.

float_softmax: scores in the call's own dtype, the softmax over them in float32, its weights rounded back for the
product with v. It is what model code calls a float32 softmax; the scores have lost their digits before it.
float_scores: q, k and v widened first, everything in float32, the output rounded once.
Both materialise [B, H, I, J]. In float32 and float64 they are one and the same, the naive form.

Source: Micikevicius et al. 2017, "Mixed Precision Training", arXiv 1710.03740 (softmax and sums in float32).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_for, wide
from attention_impls.contract import Implementation, Output, Run, Support
from attention_impls.variants.scores.softmax import SOFTMAX

Numbers = Callable[[Tensor], Tensor]
"""What the inputs of both matrix products become, and the weights between them."""


def _prepare(numbers: Numbers, call: Call, lse: bool) -> Run:
    mask = call.mask.simplified().to(call.q.device)
    visible, softmax, heads = mask.visible(), softmax_for(mask), call.q.shape[1]

    def run(call: Call) -> Output:
        q, k, v = (numbers(t) for t in (call.q, call.k, call.v))
        scores = hide(wide(q @ repeat_heads(k, heads).mT * call.scale), visible)
        weights = softmax(scores).to(v.dtype)
        out = (weights @ repeat_heads(v, heads)).to(call.q.dtype)
        return Output(out, lse_rows(scores) if lse else None)

    return run


def _as_they_are(x: Tensor) -> Tensor:
    return x


_SUPPORT = Support(lse="differentiable")

IMPLEMENTATIONS = [
    Implementation("float_softmax", SOFTMAX, partial(_prepare, _as_they_are), _SUPPORT),
    Implementation("float_scores", SOFTMAX, partial(_prepare, wide), _SUPPORT),
]
