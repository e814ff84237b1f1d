"""HGRN2: gated linear attention whose keys are what the forget gate lets go of.

f_j = floor + (1 − floor) σ(k_j);  S_j = Diag(f_j) S_{j−1} + (1 − f_j) v_jᵀ [D, E];  out_i = scale · q_iᵀ S_i with
scale = 1, S_i the state after the last key that i may see. What the call names k is the forget gate before its
sigmoid; the lower bound floor in (0, 1) [G, D] is learned, and rises from layer to layer in the paper. Each key
dimension keeps a moving average of v. As a matrix A_ij = scale · Σ_d q_id (1 − f_jd) Π_{j<l≤i} f_ld. A hidden key is
as if it were not there. Rows need not sum to 1. Causal only.

Source: Qin et al. 2024, "HGRN2", arXiv 2404.07904. The output gate is q; its activation belongs to the layer.
It is `gla` of keys 1 − f and decays log f.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from attention_impls.backwards import walked
from attention_impls.call import Call
from attention_impls.contract import Parameter, Variant
from attention_impls.decayed import SMALL_CHUNK, Decayed, faster, scale_one
from attention_impls.states import MASKS, causal_only, forms


def draw_floor(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """Between 0 and 1, as cumulated softmaxes are."""
    return torch.rand(shape, generator=generator).clamp(0.01, 0.99)


def _weights(call: Call, rows: Tensor) -> Tensor:
    floor = call.parameters["floor"].unsqueeze(-2)  # [H, 1, D]
    forget = floor + (1.0 - floor) * call.k.sigmoid()
    return walked(
        call,
        rows,
        lambda r, j: ((r * (1.0 - forget[:, :, j, None])).sum(-1, keepdim=True), r * forget[:, :, j, None]),
    )


def _source(call: Call) -> tuple[Tensor, Tensor]:
    """1 − f and log f, without the cancellation of 1 − f near f = 1."""
    floor = call.parameters["floor"].unsqueeze(-2)
    forget = floor + (1.0 - floor) * call.k.sigmoid()
    return (1.0 - floor) * (-call.k).sigmoid(), forget.clamp_min(torch.finfo(forget.dtype).tiny).log()


RULE = Decayed(_source, SMALL_CHUNK)

HGRN2 = Variant(
    "hgrn2",
    weights=_weights,
    oracle=faster(RULE, _weights),
    parameters={"floor": Parameter("G D", "weight", draw=draw_floor, dtype="float32")},
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    scale=scale_one,
    why_not=causal_only("hgrn2"),
    paper="Qin et al. 2024, arXiv 2404.07904",
    formula="f_j = floor + (1 − floor) σ(k_j), S_j = Diag(f_j) S_{j−1} + (1 − f_j) v_jᵀ, out_i = scale · q_iᵀ S_i",
    cost="time O((I+J)·D·E), chunkwise also O(J·C·(D+E)), parallel O(I·J·(D+E)); state D·E a key/value head",
)

IMPLEMENTATIONS = forms(HGRN2, RULE)
