"""mLSTM: a fading state with an exponential input gate, its rows divided by their own weight where that exceeds one.

C_j = f_j C_{j−1} + e^(ĩ_j) k_j v_jᵀ [D, E],  n_j = f_j n_{j−1} + e^(ĩ_j) k_j [D];  with r = scale · q_i, out_i =
rᵀ C_i / max(|rᵀ n_i|, 1). As a matrix A_ij = S_ij / max(|Σ_j S_ij|, 1), S_ij = r·k_j e^(ĩ_j) Π_{j<l≤i} f_l. Per token
and key/value head, f = exp(decay) in (0, 1] and ĩ (input_gate) any number. A hidden key is as if it were not there.
Rows need not sum to 1. Causal only.

Source: Beck et al. 2024, "xLSTM", arXiv 2405.04517, with the scale 1/√D on keys there; the output gate and the norm
belong to the layer. e^(ĩ) overflows: every form holds C and n in units of e^m, with m the largest logarithm of a
weight so far, and never below 0, for what is divided by is never below 1 (the paper's m may be; the result is the
same). ĩ = 0 and small q are `ssd` with a scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import logsigmoid

from attention_impls.backwards import walked
from attention_impls.call import Call
from attention_impls.contract import Parameter, Variant
from attention_impls.decayed import faster
from attention_impls.delta_rule import Layout
from attention_impls.fading import kept_state, lives, pairs, segments
from attention_impls.states import CHUNK, MASKS, Read, Recurrence, causal_only, forms, grouped, without


def squash_decay(x: Tensor) -> Tensor:
    """A projection -> log f = log σ(x + 3), about -0.05 at zero."""
    return logsigmoid(x + 3.0)


def draw_decay(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """As the layer would make them of normal projections."""
    return squash_decay(torch.randn(shape, generator=generator))


def _weights(call: Call, rows: Tensor) -> Tensor:
    gate, forget = call.parameters["input_gate"].exp(), call.parameters["decay"].exp()

    def step(r: Tensor, j: int) -> tuple[Tensor, Tensor]:
        weight = (r * call.k[:, :, j, None]).sum(-1, keepdim=True) * gate[:, :, j, None, None]
        return weight, r * forget[:, :, j, None, None]

    weights = walked(call, rows, step)
    return weights / weights.sum(-1, keepdim=True).abs().clamp_min(1.0)


@dataclass(frozen=True, eq=False)
class _Stream:
    """k [B, G, J, D], v [B, G, J, E], log f and ĩ [B, G, J, 1]; hidden keys have k = v = 0, f = 1 and ĩ = −∞."""

    k: Tensor
    v: Tensor
    decay: Tensor
    gate: Tensor


class _State(NamedTuple):
    """C [B, G, D, E] and n [B, G, 1, D] in units of e^m, m [B, G, 1, 1] ≥ 0."""

    c: Tensor
    n: Tensor
    m: Tensor


class _Gated(Recurrence[_Stream, _State]):
    """The weight of a row is summed, not multiplied by ones: it may cancel, and autocast would round it."""

    chunk = CHUNK

    def empty(self, call: Call) -> _State:
        """Zeros."""
        c = call.k.new_zeros((*call.k.shape[:2], call.k.shape[-1], call.v.shape[-1]))
        return _State(c, c.new_zeros((*c.shape[:2], 1, c.shape[2])), c.new_zeros((*c.shape[:2], 1, 1)))

    def stream(self, call: Call, layout: Layout) -> _Stream:
        """Gates [B, G, J, 1] beside keys and values."""
        decay, gate = (call.parameters[name].unsqueeze(-1) for name in ("decay", "input_gate"))
        if layout.hidden is not None:
            gate = gate.masked_fill(layout.hidden.unsqueeze(-1), float("-inf"))
        return _Stream(without(call.k, layout), without(call.v, layout), without(decay, layout), gate)

    def step(self, stream: _Stream, layout: Layout, j: int, state: _State) -> tuple[Read, _State]:
        """C_j and n_j in units of e^(m_j)."""
        k, v, decay, gate = (x[:, :, j : j + 1] for x in (stream.k, stream.v, stream.decay, stream.gate))
        c, n, before = (kept_state(layout, j, x) for x in state)
        m = torch.maximum(before + decay, gate).clamp_min(0.0).detach()
        kept, written = (before + decay - m).exp(), k * (gate - m).exp()
        after = _State(c * kept + written.mT @ v, n * kept + written, m)

        def read(q: Tensor, at: Tensor) -> Tensor:
            return _divided(q @ after.c.unsqueeze(2), (q * after.n.unsqueeze(2)).sum(-1, keepdim=True), m.unsqueeze(2))

        return read, after

    def piece(self, stream: _Stream, layout: Layout, lo: int, hi: int, state: _State) -> tuple[Read, _State]:
        """The logarithms of all weights of the chunk, and of the state before as one more key."""
        k, v, decay, gate = (x[:, :, lo:hi] for x in (stream.k, stream.v, stream.decay, stream.gate))
        alive, carries = lives(layout, lo, hi, k.device)
        total = decay.cumsum(2)  # [B, G, C, 1]
        new = (total - total.mT + gate.mT).masked_fill(~alive, float("-inf"))  # [B, G, C, C]
        old = (total + state.m).masked_fill(~carries, float("-inf"))  # [B, G, C, 1]
        m = torch.maximum(new.amax(-1, keepdim=True), old).clamp_min(0.0).detach()
        new, old = (new - m).exp(), (old - m).exp()

        def read(q: Tensor, at: Tensor) -> Tensor:
            scores, faded = (q @ k.unsqueeze(2).mT) * new[:, :, None, at], q * old[:, :, None, at]
            weight = scores.sum(-1, keepdim=True) + (faded * state.n.unsqueeze(2)).sum(-1, keepdim=True)
            return _divided(scores @ v.unsqueeze(2) + faded @ state.c.unsqueeze(2), weight, m[:, :, None, at])

        written = k * new[:, :, -1:].mT
        c, n = written.mT @ v, written.sum(2, keepdim=True)
        return read, _State(state.c * old[:, :, -1:] + c, state.n * old[:, :, -1:] + n, m[:, :, -1:])

    def parallel(self, call: Call, layout: Layout) -> Tensor:
        """The weights materialised, each row in units of its own largest."""
        stream = self.stream(call, layout)
        at, alive = pairs(layout, call.k.device)
        logs = segments(stream.decay[..., 0], at, alive) + stream.gate.mT  # [B, G, I, J]
        m = logs.amax(-1, keepdim=True).clamp_min(0.0).detach()
        scores = (grouped(call.q, call) @ stream.k.unsqueeze(2).mT) * (logs - m).exp().unsqueeze(2)
        return _divided(scores @ stream.v.unsqueeze(2), scores.sum(-1, keepdim=True), m.unsqueeze(2))


def _divided(read: Tensor, weight: Tensor, m: Tensor) -> Tensor:
    """Rows in units of e^m: what was read [.., R, E] over max(|its weight [.., R, 1]|, 1)."""
    return read / torch.maximum(weight.abs(), (-m).exp())


RULE = _Gated()

MLSTM = Variant(
    "mlstm",
    weights=_weights,
    oracle=faster(RULE, _weights),
    parameters={
        "input_gate": Parameter("B G J", "token", dtype="float32"),
        "decay": Parameter("B G J", "token", draw=draw_decay, dtype="float32", squash=squash_decay),
    },
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    why_not=causal_only("mlstm"),
    paper="Beck et al. 2024, arXiv 2405.04517",
    formula="C_j = f_j C_{j−1} + e^(ĩ_j) k_j v_jᵀ, n likewise; out_i = scale · q_iᵀ C_i / max(|scale · q_iᵀ n_i|, 1)",
    cost="time O((I+J)·D·E), chunkwise also O(J·C·(D+E)), parallel O(I·J·(D+E)); state D·E a key/value head",
)

IMPLEMENTATIONS = forms(MLSTM, RULE)
