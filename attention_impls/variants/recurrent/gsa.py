"""Gated slot attention: keys and values fade into S slots, and queries read the slots by a softmax.

K̃_j = Diag(α_j) K̃_{j−1} + (1 − α_j) k_jᵀ [S, D],  Ṽ_j = Diag(α_j) Ṽ_{j−1} + (1 − α_j) v_jᵀ [S, E];  out_i = Ṽ_iᵀ
softmax(scale · K̃_i q_i), both after the last key that i may see. As a matrix, with the shares P_isj = (1 − α_js)
Π_{j<l≤i} α_ls of key j in slot s: A_ij = Σ_s softmax_s(scale · q_i·Σ_l P_isl k_l) P_isj. α = exp(decay) in (0, 1) per
token, key/value head and slot. A hidden key is as if it were not there. Rows sum to at most 1. Causal only.

Source: Zhang et al. 2024, "Gated Slot Attention", arXiv 2409.07146, where α = σ(·)^(1/8) of a projection; the
norm on the output belongs to the layer. With α = 1 − softmax shares (exp(z_{j−1} − z_j), z the running log-sum of
`control`) it is `abc`. With one slot queries change nothing. Option: slots, the size S.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import logsigmoid

from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter, Variant
from attention_impls.decayed import SMALL_CHUNK, faster
from attention_impls.delta_rule import Layout
from attention_impls.fading import kept_state, lives, pairs, segments
from attention_impls.states import MASKS, Read, Recurrence, causal_only, forms, grouped, without
from attention_impls.tiling import checked


def squash_decay(x: Tensor) -> Tensor:
    """A projection -> log α = log σ(x) / 8, about -0.087 at zero."""
    return logsigmoid(x) / 8.0


def draw_decay(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """As the layer would make them of normal projections."""
    return squash_decay(torch.randn(shape, generator=generator))


def _weights(call: Call, rows: Tensor) -> Tensor:
    """Shares of keys in slots from the last key to the first, then the softmax over slots."""
    alpha, visible = call.parameters["decay"].exp(), call.mask.visible(rows)
    keys = call.k.shape[2]
    seen = torch.ones((1, 1, len(rows), keys), dtype=torch.bool) if visible is None else visible
    left = torch.ones_like(alpha[:, :, :1]).expand(-1, -1, len(rows), -1)  # [B, H, R, S]
    shares = []
    for j in reversed(range(keys)):
        sees, here = seen[..., j, None], alpha[:, :, j, None]
        shares.append((left * (1.0 - here)).masked_fill(~sees, 0.0))
        left = torch.where(sees, left * here, left)
    share = torch.stack(shares[::-1], -2)  # [B, H, R, J, S]
    slots = torch.einsum("bhrjs,bhjd->bhrsd", share, call.k)
    read = torch.softmax(call.scale * torch.einsum("bhrd,bhrsd->bhrs", call.q[:, :, rows], slots), -1)
    weights: Tensor = torch.einsum("bhrs,bhrjs->bhrj", read, share)
    return weights


@dataclass(frozen=True, eq=False)
class _Stream:
    """k [B, G, J, D], v [B, G, J, E], log α and 1 − α [B, G, J, S]; 0 at hidden keys."""

    k: Tensor
    v: Tensor
    decay: Tensor
    share: Tensor


class _Slots(NamedTuple):
    """K̃ [B, G, S, D] and Ṽ [B, G, S, E]."""

    k: Tensor
    v: Tensor


class _Gated(Recurrence[_Stream, _Slots]):
    chunk = SMALL_CHUNK

    def empty(self, call: Call) -> _Slots:
        """Zeros."""
        zero = call.k.new_zeros((*call.k.shape[:2], call.parameters["decay"].shape[-1], 1))
        return _Slots(zero.expand(-1, -1, -1, call.k.shape[-1]), zero.expand(-1, -1, -1, call.v.shape[-1]))

    def stream(self, call: Call, layout: Layout) -> _Stream:
        """The share of a key is what its decay lets go."""
        decay = without(call.parameters["decay"], layout)
        return _Stream(without(call.k, layout), without(call.v, layout), decay, -torch.expm1(decay))

    def step(self, stream: _Stream, layout: Layout, j: int, state: _Slots) -> tuple[Read, _Slots]:
        """Every slot fades and takes its share of a key."""
        k, v, decay, share = (x[:, :, j : j + 1] for x in (stream.k, stream.v, stream.decay, stream.share))
        kept = decay.exp().mT  # [B, G, S, 1]
        after = _Slots(
            *(kept_state(layout, j, held) * kept + share.mT @ x for held, x in zip(state, (k, v), strict=True))
        )

        def read(q: Tensor, at: Tensor) -> Tensor:
            return torch.softmax(q @ after.k.unsqueeze(2).mT, -1) @ after.v.unsqueeze(2)

        return read, after

    def piece(self, stream: _Stream, layout: Layout, lo: int, hi: int, state: _Slots) -> tuple[Read, _Slots]:
        """The shares of the chunk's keys at each of its rows, [B, G, C, C, S], used for keys and again for values."""
        k, v, decay, share = (x[:, :, lo:hi] for x in (stream.k, stream.v, stream.decay, stream.share))
        alive, carries = lives(layout, lo, hi, k.device)
        total = decay.cumsum(2)
        fade = (total.unsqueeze(3) - total.unsqueeze(2)).masked_fill(~alive.unsqueeze(-1), float("-inf")).exp()
        shares, carried = fade * share.unsqueeze(2), total.exp() * carries

        def read(q: Tensor, at: Tensor) -> Tensor:
            here, old = shares[:, :, at], carried[:, :, None, at]  # [B, G, R, C, S], [B, G, 1, R, S]
            new = ((q @ k.unsqueeze(2).mT).transpose(2, 3) @ here).transpose(2, 3)
            slots = torch.softmax(new + (q @ state.k.unsqueeze(2).mT) * old, -1)  # [B, G, N, R, S]
            scores = (slots.transpose(2, 3) @ here.mT).transpose(2, 3)
            return scores @ v.unsqueeze(2) + (slots * old) @ state.v.unsqueeze(2)

        kept, written = carried[:, :, -1:].mT, shares[:, :, -1].mT
        return read, _Slots(state.k * kept + written @ k, state.v * kept + written @ v)

    def parallel(self, call: Call, layout: Layout) -> Tensor:
        """A materialised; one slot after the other, once for its logits and once for its share of A."""
        stream = self.stream(call, layout)
        at, alive = pairs(layout, call.k.device)
        scores = grouped(call.q, call) @ stream.k.unsqueeze(2).mT  # [B, G, N, I, J]
        size = stream.decay.shape[-1]
        shares = [
            (segments(stream.decay[..., s], at, alive).exp() * stream.share[..., s].unsqueeze(-2)).unsqueeze(2)
            for s in range(size)
        ]
        slots = torch.softmax(torch.stack([(scores * share).sum(-1) for share in shares], -1), -1)
        weights = torch.zeros_like(scores)
        for s in range(size):
            weights = weights + slots[..., s, None] * shares[s]
        return weights @ stream.v.unsqueeze(2)


RULE = _Gated()


def implementations(slots: int = 64) -> list[Implementation]:
    """The three forms for one number of slots. Raises ValueError for slots below 1."""
    sizes = {"S": checked("slots", slots)}
    variant = Variant(
        "gsa",
        weights=_weights,
        oracle=faster(RULE, _weights),
        parameters={
            "decay": Parameter("B G J S", "token", draw=draw_decay, dtype="float32", squash=squash_decay, sizes=sizes)
        },
        couples=frozenset({"keys"}),
        masks=MASKS,
        row_stochastic=False,
        why_not=causal_only("gsa"),
        paper="Zhang et al. 2024, arXiv 2409.07146",
        formula="K̃_j = Diag(α_j) K̃_{j−1} + (1 − α_j) k_jᵀ, Ṽ likewise; out_i = Ṽ_iᵀ softmax(scale · K̃_i q_i)",
        cost="time O((I+J)·S·(D+E)), chunkwise also O(J·C·S), parallel O(I·J·S); state S·(D+E) a key/value head",
    )
    return forms(variant, RULE)
