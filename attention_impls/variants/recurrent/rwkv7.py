"""RWKV-7 (Goose): a delta rule in which each dimension fades, and is erased, at a rate of its own.

S_j = (Diag(α_j) − (r_j ⊙ κ̂_j) κ̂_jᵀ) S_{j−1} + k̃_j v_jᵀ [D, E];  out_i = scale · q_iᵀ S_i with scale = 1, S_i the
state after the last key that i may see. κ̂ = κ / |κ|, κ = k ⊙ removal;  k̃ = k ⊙ (1 + (r − 1) ⊙ replacement).
α = exp(decay) in (e^(−e^(−1/2)), 1) and the in-context learning rate r in (0, 1) per token, key/value head and key
dimension; removal and replacement [G, D] are learned. What is erased is read before the state fades. A hidden key is
as if it were not there. As a matrix A_ij = scale · q_iᵀ [Π_{j<l≤i} (Diag(α_l) − (r_l ⊙ κ̂_l) κ̂_lᵀ)] k̃_j. Rows need
not sum to 1. Causal only.

Source: Peng et al. 2025, "RWKV-7 Goose", arXiv 2503.14456 (their state is the transpose; receptance is q, a is r). The
token shift, the value residual, the bonus of the own token after the norm, and the gate belong to the layer. r = 0 is
`gla` of k ⊙ (1 − replacement) without a scale; r = β in every dimension, α = 1, removal = replacement = 1 is
`deltanet` where |k| = 1.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from attention_impls.backwards import walked
from attention_impls.call import Call
from attention_impls.contract import Growth, Parameter, Variant
from attention_impls.decayed import SMALL_CHUNK, faster, scale_one
from attention_impls.states import MASKS, causal_only, forms
from attention_impls.transitions import Erasing, Transitions


def squash_decay(x: Tensor) -> Tensor:
    """A projection -> log α = −e^(−1/2) σ(x), about -0.3 at zero."""
    return -math.exp(-0.5) * x.sigmoid()


def draw_decay(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """As the layer would make them of normal projections."""
    return squash_decay(torch.randn(shape, generator=generator) - 2.0)


def draw_rate(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """σ of a normal projection."""
    return torch.randn(shape, generator=generator).sigmoid()


def draw_share(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """Around 1, where the paper starts them."""
    return 0.5 + torch.rand(shape, generator=generator)


def _weights(call: Call, rows: Tensor) -> Tensor:
    p = {name: value.unsqueeze(-2) if value.dim() == 2 else value for name, value in call.parameters.items()}
    alpha, rate = p["decay"].exp(), p["rate"]
    removed = normalize(call.k * p["removal"], dim=-1)
    written = call.k * (1.0 + (rate - 1.0) * p["replacement"])

    def step(r: Tensor, j: int) -> tuple[Tensor, Tensor]:
        erased = (r * rate[:, :, j, None] * removed[:, :, j, None]).sum(-1, keepdim=True)
        weight = (r * written[:, :, j, None]).sum(-1, keepdim=True)
        return weight, r * alpha[:, :, j, None] - erased * removed[:, :, j, None]

    return walked(call, rows, step)


def _stream(call: Call) -> Erasing:
    p = call.parameters
    removed = normalize(call.k * p["removal"].unsqueeze(-2), dim=-1)
    written = call.k + call.k * (p["rate"] - 1.0) * p["replacement"].unsqueeze(-2)
    return Erasing(p["decay"], -removed, p["rate"] * removed, written, call.v)


RULE = Transitions(_stream, SMALL_CHUNK)

RWKV7 = Variant(
    "rwkv7",
    weights=_weights,
    oracle=faster(RULE, _weights),
    parameters={
        "decay": Parameter("B G J D", "token", draw=draw_decay, dtype="float32", squash=squash_decay),
        "rate": Parameter("B G J D", "token", draw=draw_rate, squash=torch.sigmoid),
        "removal": Parameter("G D", "weight", draw=draw_share),
        "replacement": Parameter("G D", "weight", draw=draw_share),
    },
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    scale=scale_one,
    why_not=causal_only("rwkv7"),
    paper="Peng et al. 2025, arXiv 2503.14456",
    formula="S_j = (Diag(α_j) − (r_j ⊙ κ̂_j) κ̂_jᵀ) S_{j−1} + k̃_j v_jᵀ, out_i = scale · q_iᵀ S_i",
    cost="time O((I+J)·D·E), chunkwise also O(J·C·(D+E)), parallel O(I·J·(I+D+E)); state D·E a key/value head",
)

IMPLEMENTATIONS = forms(RWKV7, RULE, at_once=Growth(3, 2))
