"""Retention: a state that every token fades by a constant of the head, far memory in some heads, near in others.

S_j = γ_h S_{j−1} + k_j v_jᵀ [D, E];  out_i = scale · q_iᵀ S_i, S_i the state after the last key that i may see.
As a matrix A_ij = scale · q_i·k_j γ_h^(i−j). γ_h = 1 − 2^(−5−h), h = 0, 1, …: a constant [G] of the key/value heads,
handed over as its logarithm. A hidden key is as if it were not there. Rows need not sum to 1. Causal only.

Source: Sun et al. 2023, "Retentive Network", arXiv 2307.08621. The rotation of queries and keys, the group norm and
the gate around it belong to the layer. torchscale divides each row by max(|Σ_j A_ij|, 1), which the group norm
undoes; flash-linear-attention does not, and is followed. γ = 1 is linear attention without features or denominator.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from attention_impls.backwards import walked
from attention_impls.call import Call
from attention_impls.contract import Parameter, Variant
from attention_impls.decayed import Decayed, faster, per_head
from attention_impls.states import CHUNK, MASKS, causal_only, forms


def log_decays(heads: int) -> Tensor:
    """log γ_h [heads], γ_h = 1 − 2^(−5−h)."""
    h = torch.arange(heads, dtype=torch.float64)
    return torch.log1p(-(2.0 ** (-5.0 - h)))


def draw_decay(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """The constants: nothing is drawn."""
    return log_decays(shape[0])


def fading_weights(call: Call, rows: Tensor) -> Tensor:
    """Rows of A for log-decays [H] that are the same for every token."""
    alpha = call.parameters["decay"].exp().view(1, -1, 1, 1)
    return walked(call, rows, lambda r, j: ((r * call.k[:, :, j, None]).sum(-1, keepdim=True), r * alpha))


RULE = Decayed(per_head, CHUNK)

RETENTION = Variant(
    "retention",
    weights=fading_weights,
    oracle=faster(RULE, fading_weights),
    parameters={"decay": Parameter("G", "constant", draw=draw_decay, dtype="float32")},
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    why_not=causal_only("retention"),
    paper="Sun et al. 2023, arXiv 2307.08621",
    formula="S_j = γ_h S_{j−1} + k_j v_jᵀ, out_i = scale · q_iᵀ S_i; γ_h = 1 − 2^(−5−h)",
    cost="time O((I+J)·D·E), chunkwise also O(J·C·(D+E)), parallel O(I·J·(D+E)); state D·E a key/value head",
)

IMPLEMENTATIONS = forms(RETENTION, RULE)
