"""State-space duality (Mamba-2), which is gated linear attention with one decay a token: simple gated linear attention.

S_j = α_j S_{j−1} + k_j v_jᵀ [D, E];  out_i = scale · q_iᵀ S_i, scale = 1, S_i the state after the last key that i
may see. As a matrix A_ij = scale · q_i·k_j Π_{j<l≤i} α_l, a 1-semiseparable mask on q kᵀ. α = exp(decay) in (0, 1],
per token and key/value head. A hidden key is as if it were not there. Rows need not sum to 1. Causal only.

Source: Dao, Gu 2024, "Transformers are SSMs", arXiv 2405.21060. Their names: C for q, B for k, X for v, A for decay.
The step size Δ is folded in before, as in the paper's listing: v = Δ x, decay = Δ A. The convolution, the skip D x
and the gate belong to the layer. The paper shares B and C among heads; here query heads share k and v, as elsewhere.
A constant α is `lightning`; with a scale it is `gla` with the same α in every dimension, and `gated_delta` without
what that erases. The parallel form sums log-decays by segments, as the paper does.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from attention_impls.backwards import walked
from attention_impls.call import Call
from attention_impls.contract import Parameter, Variant
from attention_impls.decayed import Decayed, faster, per_token, scale_one
from attention_impls.states import CHUNK, MASKS, causal_only, forms


def squash_decay(x: Tensor) -> Tensor:
    """A projection -> log α = −Δ with the step Δ = softplus(x − 2), about -0.13 at zero."""
    return -softplus(x - 2.0)


def draw_decay(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """As the layer would make them of normal projections."""
    return squash_decay(torch.randn(shape, generator=generator))


def _weights(call: Call, rows: Tensor) -> Tensor:
    alpha = call.parameters["decay"].exp()
    return walked(
        call, rows, lambda r, j: ((r * call.k[:, :, j, None]).sum(-1, keepdim=True), r * alpha[:, :, j, None, None])
    )


RULE = Decayed(per_token, CHUNK)

SSD = Variant(
    "ssd",
    weights=_weights,
    oracle=faster(RULE, _weights),
    parameters={"decay": Parameter("B G J", "token", draw=draw_decay, dtype="float32", squash=squash_decay)},
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    scale=scale_one,
    why_not=causal_only("ssd"),
    paper="Dao, Gu 2024, arXiv 2405.21060",
    formula="S_j = α_j S_{j−1} + k_j v_jᵀ, out_i = scale · q_iᵀ S_i, scale = 1",
    cost="time O((I+J)·D·E), chunkwise also O(J·C·(D+E)), parallel O(I·J·(D+E)); state D·E a key/value head",
)

IMPLEMENTATIONS = forms(SSD, RULE)
