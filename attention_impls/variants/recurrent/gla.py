"""Gated linear attention: every key dimension of the state fades by a number that the token decides.

S_j = Diag(α_j) S_{j−1} + k_j v_jᵀ [D, E];  out_i = scale · q_iᵀ S_i, S_i the state after the last key that i may see.
As a matrix A_ij = scale · Σ_d q_id k_jd Π_{j<l≤i} α_ld. α = exp(decay) in (0, 1], per token, key/value head and key
dimension. A hidden key is as if it were not there: it neither writes nor decays. Rows need not sum to 1. Causal only.

Source: Yang et al. 2023, "Gated Linear Attention Transformers", arXiv 2312.06635, where α = σ(·)^(1/16) of a
projection; the norm and the gate on the output belong to the layer. The paper has no scale; its code, followed here,
has 1/√D. The same α in every dimension is `ssd` with a scale; α = 1 is linear attention without features or
denominator. The paper's parallel form divides by products of α and overflows; the one here does not (see `fading`).
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import logsigmoid

from attention_impls.backwards import walked
from attention_impls.call import Call
from attention_impls.contract import Parameter, Variant
from attention_impls.decayed import SMALL_CHUNK, Decayed, faster, per_dimension
from attention_impls.states import MASKS, causal_only, forms


def squash_decay(x: Tensor) -> Tensor:
    """A projection -> log α = log σ(x) / 16, about -0.043 at zero."""
    return logsigmoid(x) / 16.0


def draw_decay(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """As the layer would make them of normal projections."""
    return squash_decay(torch.randn(shape, generator=generator))


def _weights(call: Call, rows: Tensor) -> Tensor:
    alpha = call.parameters["decay"].exp()
    return walked(
        call, rows, lambda r, j: ((r * call.k[:, :, j, None]).sum(-1, keepdim=True), r * alpha[:, :, j, None])
    )


RULE = Decayed(per_dimension, SMALL_CHUNK)

GLA = Variant(
    "gla",
    weights=_weights,
    oracle=faster(RULE, _weights),
    parameters={"decay": Parameter("B G J D", "token", draw=draw_decay, dtype="float32", squash=squash_decay)},
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    why_not=causal_only("gla"),
    paper="Yang et al. 2023, arXiv 2312.06635",
    formula="S_j = Diag(α_j) S_{j−1} + k_j v_jᵀ, out_i = scale · q_iᵀ S_i",
    cost="time O((I+J)·D·E), chunkwise also O(J·C·(D+E)), parallel O(I·J·(D+E)); state D·E a key/value head",
)

IMPLEMENTATIONS = forms(GLA, RULE)
