"""Kimi delta attention: the gated delta rule in which every key dimension of the state fades by its own number.

S_j = (I − β_j k̂_j k̂_jᵀ) Diag(α_j) S_{j−1} + β_j k̂_j v_jᵀ [D, E];  out_i = scale · q_iᵀ S_i, S_i the state after the
last key that i may see. α = exp(decay) in (0, 1] per token, key/value head and key dimension, β in (0, 1) per token and
head, k̂ = k / |k|. A hidden key is as if it were not there: it neither writes nor decays. As a matrix
A_ij = scale · q_iᵀ [Π_{j<l≤i} (I − β_l k̂_l k̂_lᵀ) Diag(α_l)] β_j k̂_j. Rows need not sum to 1. Causal only.

Source: Kimi Team 2025, "Kimi Linear", arXiv 2510.26692. There queries are normalised too, which only scales their
rows; the short convolutions, the norm and the gate belong to the layer. The same α in every dimension is
`gated_delta`, α = 1 is `deltanet`, and orthogonal axis-aligned keys leave `gla` of β k̂.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attention_impls.backwards import walked
from attention_impls.call import Call
from attention_impls.contract import Growth, Parameter, Variant
from attention_impls.decayed import SMALL_CHUNK, faster
from attention_impls.states import MASKS, causal_only, forms
from attention_impls.transitions import Erasing, Transitions
from attention_impls.variants.recurrent.deltanet import draw_beta
from attention_impls.variants.recurrent.gla import draw_decay, squash_decay


def _weights(call: Call, rows: Tensor) -> Tensor:
    unit, beta, alpha = normalize(call.k, dim=-1), call.parameters["beta"], call.parameters["decay"].exp()

    def step(r: Tensor, j: int) -> tuple[Tensor, Tensor]:
        key = unit[:, :, j, None]
        weight = (r * key).sum(-1, keepdim=True) * beta[:, :, j, None, None]
        return weight, (r - weight * key) * alpha[:, :, j, None]

    return walked(call, rows, step)


def _stream(call: Call) -> Erasing:
    """What is erased is read after the state has faded: a = −Diag(α) k̂."""
    unit, decay = normalize(call.k, dim=-1), call.parameters["decay"]
    return Erasing(decay, -unit * decay.exp(), call.parameters["beta"].unsqueeze(-1) * unit, None, call.v)


RULE = Transitions(_stream, SMALL_CHUNK)

KDA = Variant(
    "kda",
    weights=_weights,
    oracle=faster(RULE, _weights),
    parameters={
        "decay": Parameter("B G J D", "token", draw=draw_decay, dtype="float32", squash=squash_decay),
        "beta": Parameter("B G J", "token", draw=draw_beta, squash=torch.sigmoid),
    },
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    why_not=causal_only("kda"),
    paper="Kimi Team 2025, arXiv 2510.26692",
    formula="S_j = (I − β_j k̂_j k̂_jᵀ) Diag(α_j) S_{j−1} + β_j k̂_j v_jᵀ, out_i = scale · q_iᵀ S_i",
    cost="time O((I+J)·D·E), chunkwise also O(J·C·(D+E)), parallel O(I·J·(I+D+E)); state D·E a key/value head",
)

IMPLEMENTATIONS = forms(KDA, RULE, at_once=Growth(3, 2))
