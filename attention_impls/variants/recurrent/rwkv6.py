"""RWKV-6 (Finch): gated linear attention that reads the state before the token, and the token itself by a bonus.

out_i = scale · q_iᵀ (S_{i−1} + Diag(u) k_i v_iᵀ);  S_j = Diag(α_j) S_{j−1} + k_j v_jᵀ [D, E];  scale = 1.
α = exp(decay) in (0, 1) per token, key/value head and key dimension; the bonus u [G, D] is learned. i is the query's
own position: where no key stands there, or a hidden one, there is no bonus, and the state after the last key before
it is read. As a matrix A_ii = scale · Σ_d q_id u_d k_id and A_ij = scale · Σ_d q_id k_jd Π_{j<l<i} α_ld: the own
decay is not felt yet. A hidden key is as if it were not there. Rows need not sum to 1. Causal only.

Source: Peng et al. 2024, "Eagle and Finch", arXiv 2404.05892, whose receptance is q. The token shift, the norm and
the gate belong to the layer; α that is the same for every token is RWKV-5 (Eagle). With u = 1 and queries at the
token before, it is `gla` without a scale.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from attention_impls.backwards import own_key, walked
from attention_impls.call import Call
from attention_impls.contract import Parameter, Variant
from attention_impls.decayed import SMALL_CHUNK, Decayed, faster, per_dimension, scale_one
from attention_impls.delta_rule import Layout
from attention_impls.states import MASKS, causal_only, forms, grouped, without


def squash_decay(x: Tensor) -> Tensor:
    """A projection -> log α = −exp(x − 3), about -0.05 at zero."""
    return -torch.exp(x - 3.0)


def draw_decay(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """As the layer would make them of normal projections."""
    return squash_decay(torch.randn(shape, generator=generator))


def _weights(call: Call, rows: Tensor) -> Tensor:
    alpha, bonus = call.parameters["decay"].exp(), call.parameters["bonus"].unsqueeze(-2)  # [B, H, J, D], [H, 1, D]

    def step(r: Tensor, j: int) -> tuple[Tensor, Tensor]:
        own, key = own_key(call, rows, j), call.k[:, :, j, None]
        weight = torch.where(own, r * bonus * key, r * key).sum(-1, keepdim=True)
        return weight, torch.where(own, r, r * alpha[:, :, j, None])

    return walked(call, rows, step)


class _Bonus(Decayed):
    """A fading state read one key earlier, and the own key beside it."""

    def layout(self, call: Call) -> Layout:
        """Row r reads after the key before its own."""
        own = Layout.of(call)
        return replace(own, offset=own.offset - 1)

    def finish(self, out: Tensor, call: Call, layout: Layout) -> Tensor:
        """Adds the own keys; the first row of a document finds an empty state."""
        offset = layout.offset + 1
        first, last = max(-offset, 0), min(layout.rows, layout.keys - offset)  # rows at whose position a key stands
        if layout.document is not None:
            begins = layout.document != layout.document.roll(1, -1)
            out = out.masked_fill(begins[:, :, None, :, None], 0.0)
        if last <= first:
            return out
        q = grouped(call.q[:, :, first:last] * call.scale, call)
        here = slice(first + offset, last + offset)
        k, v = (without(x, layout)[:, :, None, here] for x in (call.k, call.v))
        weight = (q * call.parameters["bonus"][:, None, None] * k).sum(-1, keepdim=True)
        return out + pad(weight * v, (0, 0, first, layout.rows - last))


RULE = _Bonus(per_dimension, SMALL_CHUNK)

RWKV6 = Variant(
    "rwkv6",
    weights=_weights,
    oracle=faster(RULE, _weights),
    parameters={
        "decay": Parameter("B G J D", "token", draw=draw_decay, dtype="float32", squash=squash_decay),
        "bonus": Parameter("G D", "weight"),
    },
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    scale=scale_one,
    why_not=causal_only("rwkv6"),
    paper="Peng et al. 2024, arXiv 2404.05892",
    formula="out_i = scale · q_iᵀ (S_{i−1} + Diag(u) k_i v_iᵀ), S_j = Diag(α_j) S_{j−1} + k_j v_jᵀ",
    cost="time O((I+J)·D·E), chunkwise also O(J·C·(D+E)), parallel O(I·J·(D+E)); state D·E a key/value head",
)

IMPLEMENTATIONS = forms(RWKV6, RULE)
