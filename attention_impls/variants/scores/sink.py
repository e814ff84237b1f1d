"""Attention with a sink: A_ij = exp(L_ij) / (exp(z_h) + Σ_j exp(L_ij)), L = scale · q kᵀ, z [H] learned.

One more logit a head in the denominator, with no key and no value: a head may attend to nothing. Rows sum to less
than 1; a query that sees no key gives zeros. z → −∞ is softmax attention; z = 0 is "softmax plus one" (Miller 2023).
Sources: OpenAI 2025 (gpt-oss), arXiv 2508.10925, for z learned by head; Xiao et al. 2023, arXiv 2309.17453, for why
heads look for a sink. The LSE that a row would join by holds the sink once for every part: parts cannot be joined.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads, softmax_rows, wide
from attention_impls.contract import Implementation, Output, Parameter, Run, Support, Variant
from attention_impls.makers import of
from attention_impls.scored import dot, shown
from attention_impls.scored_tiles import tiled
from attention_impls.through import softmax_kernel


def _weights(call: Call, rows: Tensor) -> Tensor:
    """Shifted by the row's maximum, the sink's logit among them."""
    logits = wide(call.q[:, :, rows] @ call.k.mT * call.scale)
    z, visible = wide(call.parameters["sink"])[:, None, None], call.mask.visible(rows)
    top = torch.maximum(hide(logits, visible).amax(-1, keepdim=True), z).detach()
    powers = shown((logits - top).clamp(max=0.0).exp(), visible)
    return (powers / ((z - top).exp() + powers.sum(-1, keepdim=True))).to(call.q.dtype)


SINK = Variant(
    "sink",
    weights=_weights,
    parameters={"sink": Parameter("H", "weight")},
    row_stochastic=False,
    paper="OpenAI 2025, arXiv 2508.10925; Xiao et al. 2023, arXiv 2309.17453",
    formula="A_ij = exp(L_ij) / (exp(z_h) + Σ_j exp(L_ij)), L = scale · q kᵀ, scale = D^-1/2",
    cost="time O(I·J·D); memory O(I·J) materialised, O(I) tiled",
)


def _naive(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float, sink: Tensor) -> Tensor:
    """The sink as a column of logits in front of the keys', dropped again after the softmax."""
    heads = q.shape[1]
    logits = hide(wide(q) * scale @ wide(repeat_heads(k, heads)).mT, mask)
    column = wide(sink).to(logits.dtype).view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
    weights = softmax_rows(torch.cat([column, logits], -1))[..., 1:]
    return (weights @ wide(repeat_heads(v, heads))).to(q.dtype)


def _rescaled(inner: Implementation) -> Implementation:
    """A softmax kernel whose rows are multiplied by what its LSE leaves to the keys: σ(LSE − z)."""

    def bare(call: Call) -> Call:
        return replace(call, parameters={}, axes={})

    def prepare(call: Call, lse: bool) -> Run:
        run = inner.prepare(bare(call), True)

        def rescaled(call: Call) -> Output:
            out, total = run(bare(call))
            assert total is not None  # it was asked for
            share = torch.sigmoid(total - wide(call.parameters["sink"])[:, None]).unsqueeze(-1)
            return Output((out * share).to(call.q.dtype))

        return rescaled

    support: Support = replace(inner.support, devices=frozenset({"cpu"}), lse="no", backward=False)
    return replace(inner, variant=SINK, prepare=prepare, support=support, configure=None)


IMPLEMENTATIONS = [
    of(SINK, _naive),
    tiled(SINK, dot, sink="sink"),
    _rescaled(softmax_kernel("sdpa_flash")),  # its LSE has no gradient: forward only
]
