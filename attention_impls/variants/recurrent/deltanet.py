"""DeltaNet: linear attention that overwrites what its state held under a key instead of adding to it.

S_j = (I − β_j k̂_j k̂_jᵀ) S_{j−1} + β_j k̂_j v_jᵀ [D, E];  out_i = scale · q_iᵀ S_i, S_i the state after the last key
that i may see; β in (0, 1) per token and key/value head, k̂ = k / |k| (with keys of any length the products explode).
A hidden key is as if it were not there. As a matrix A_ij = scale · q_iᵀ [Π_{j<l≤i} (I − β_l k̂_l k̂_lᵀ)] β_j k̂_j; with
P = tril(q k̂ᵀ) and M = tril(Diag(β) k̂ k̂ᵀ, −1), A = scale · P (I + M)^(−1) Diag(β): the parallel form. Rows need not
sum to 1. Causal only.

Sources: Schlag, Irie, Schmidhuber 2021, arXiv 2102.11174; Yang et al. 2024, arXiv 2406.06484, for the chunks. There
queries are normalised too, which only scales their rows, and is left to the layer. It is `gated_delta` without decay;
with orthogonal keys it is linear attention of β k̂ without a denominator.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from attention_impls.backwards import walked
from attention_impls.call import Call
from attention_impls.contract import Growth, Parameter, Variant
from attention_impls.decayed import faster
from attention_impls.states import CHUNK, MASKS, causal_only, forms
from attention_impls.transitions import Erasing, Transitions


def draw_beta(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """σ of a normal projection."""
    return torch.randn(shape, generator=generator).sigmoid()


def _weights(call: Call, rows: Tensor) -> Tensor:
    unit, beta = normalize(call.k, dim=-1), call.parameters["beta"]

    def step(r: Tensor, j: int) -> tuple[Tensor, Tensor]:
        key = unit[:, :, j, None]
        weight = (r * key).sum(-1, keepdim=True) * beta[:, :, j, None, None]
        return weight, r - weight * key

    return walked(call, rows, step)


def _stream(call: Call) -> Erasing:
    unit = normalize(call.k, dim=-1)
    return Erasing(torch.zeros_like(unit[..., :1]), -unit, call.parameters["beta"].unsqueeze(-1) * unit, None, call.v)


RULE = Transitions(_stream, CHUNK)

DELTANET = Variant(
    "deltanet",
    weights=_weights,
    oracle=faster(RULE, _weights),
    parameters={"beta": Parameter("B G J", "token", draw=draw_beta, squash=torch.sigmoid)},
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    why_not=causal_only("deltanet"),
    paper="Schlag, Irie, Schmidhuber 2021, arXiv 2102.11174; Yang et al. 2024, arXiv 2406.06484",
    formula="S_j = (I − β_j k̂_j k̂_jᵀ) S_{j−1} + β_j k̂_j v_jᵀ, out_i = scale · q_iᵀ S_i",
    cost="time O((I+J)·D·E), chunkwise also O(J·C·(D+E)), parallel O(I·J·(I+D+E)); state D·E a key/value head",
)

IMPLEMENTATIONS = forms(DELTANET, RULE, at_once=Growth(3, 2))
