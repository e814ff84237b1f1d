"""Log-linear attention: a fading state for each of log I stretches of the past, which a query weighs one by one.

A_ij = scale · q_i·k_j λ_i^(level(i, j)) Π_{j<l≤i} α_l for j ≤ i, scale = 1: `ssd` whose weights also depend on the
stretch in which key j lies. level(i, j) is 0 for j = i, else one more than the highest bit in which the positions i
and j differ: a Fenwick tree's stretches, their lengths powers of two, long ones far away. λ ≥ 0 (levels, [B, H, I, L])
and α = exp(decay) in (0, 1], [B, G, J], are functions of the token. Positions are counted from the first key, hidden
ones too; a hidden key neither writes nor decays. Rows need not sum to 1. Causal only, without packed documents
(their stretches would begin anew).

Source: Guo et al. 2025, "Log-Linear Attention", arXiv 2506.04761. Level 0 is the own key alone. The recurrent form
keeps a state for each bit that is set in the position, and adds them up as a binary counter carries; chunks whose
size is a power of two are the stretches' own, so that only whole chunks meet in the states. λ = 1 is `ssd`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from attention_impls.backwards import walked
from attention_impls.call import Call
from attention_impls.contract import Growth, Parameter, Variant, Workload
from attention_impls.decayed import faster, scale_one
from attention_impls.delta_rule import Layout
from attention_impls.fading import pairs, segments
from attention_impls.states import CHUNK, MASKS, Read, Recurrence, causal_only, forms, grouped, without
from attention_impls.variants.recurrent.ssd import draw_decay, squash_decay

States = Mapping[int, Tensor]
"""For each bit set in the next position, the state [B, G, D, E] of its stretch."""


def _levels(workload: Workload) -> int:
    """As many as positions below max(I, J) have bits, and level 0."""
    return (max(workload.q_len, workload.kv_len) - 1).bit_length() + 1


def draw_levels(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """Softplus of normal projections."""
    return softplus(torch.randn(shape, generator=generator))


def _weights(call: Call, rows: Tensor) -> Tensor:
    alpha, levels = call.parameters["decay"].exp(), call.parameters["levels"][:, :, rows]  # [B, H, R, L]
    at = [int(i) - call.mask.k_start for i in call.mask.q_positions(rows)]

    def step(r: Tensor, j: int) -> tuple[Tensor, Tensor]:
        level = torch.tensor([(max(i, 0) ^ j).bit_length() for i in at])
        own = levels.gather(
            -1, level.clamp_max(levels.shape[-1] - 1).view(1, 1, -1, 1).expand(*levels.shape[:2], -1, 1)
        )
        return (r * call.k[:, :, j, None]).sum(-1, keepdim=True) * own, r * alpha[:, :, j, None, None]

    return walked(call, rows, step)


@dataclass(frozen=True, eq=False)
class _Stream:
    """k [B, G, J, D], v [B, G, J, E], log α [B, G, J, 1], 0 at hidden keys; λ [B, G, H/G, I, L]."""

    k: Tensor
    v: Tensor
    decay: Tensor
    levels: Tensor


class _Fenwick(Recurrence[_Stream, States]):
    chunk = CHUNK

    def sized(self, chunk: int) -> int:
        """Chunks must be stretches of the tree."""
        if chunk < 1 or chunk & (chunk - 1):
            raise ValueError(f"option chunk must be a power of two; got {chunk}")
        return chunk

    def empty(self, call: Call) -> States:
        """No stretch."""
        return {}

    def stream(self, call: Call, layout: Layout) -> _Stream:
        """Keys, values and decays, and the levels beside the queries."""
        decay = call.parameters["decay"].unsqueeze(-1)
        levels = grouped(call.parameters["levels"], call)
        return _Stream(without(call.k, layout), without(call.v, layout), without(decay, layout), levels)

    def step(self, stream: _Stream, layout: Layout, j: int, state: States) -> tuple[Read, States]:
        """A chunk of one key."""
        return self.piece(stream, layout, j, j + 1, state)

    def digest(self, stream: _Stream, layout: Layout, upto: int, state: States) -> States:
        """Whole chunks, then the keys that are left one by one."""
        whole = upto - upto % self.chunk
        for lo in range(0, whole, self.chunk):
            state = self.piece(stream, layout, lo, lo + self.chunk, state)[1]
        for j in range(whole, upto):
            state = self.step(stream, layout, j, state)[1]
        return state

    def piece(self, stream: _Stream, layout: Layout, lo: int, hi: int, state: States) -> tuple[Read, States]:
        """Keys lo..hi, whose lowest levels are among themselves; each stretch before is a state with a level."""
        k, v, decay = (x[:, :, lo:hi] for x in (stream.k, stream.v, stream.decay))
        total = decay.cumsum(2)  # [B, G, C, 1]
        positions = torch.arange(hi - lo, device=k.device)
        alive = positions <= positions.unsqueeze(-1)
        fade = (total - total.mT).masked_fill(~alive, float("-inf")).exp()  # [B, G, C, C]
        first = lo - layout.offset  # the row that stands at key lo

        def read(q: Tensor, at: Tensor) -> Tensor:
            levels = stream.levels[:, :, :, at + first]  # [B, G, N, R, L]
            near = _chosen(levels, _level(at.unsqueeze(-1), positions))
            out = ((q @ k.unsqueeze(2).mT) * fade[:, :, None, at] * near) @ v.unsqueeze(2)
            faded = q * total.exp()[:, :, None, at]
            for bit, held in state.items():
                out = out + levels[..., bit + 1, None] * (faded @ held.unsqueeze(2))
            return out

        kept = total[:, :, -1:].exp().mT
        written = (k * fade[:, :, -1:].mT).mT @ v
        return read, _carried({bit: held * kept for bit, held in state.items()}, written, lo, hi)

    def parallel(self, call: Call, layout: Layout) -> Tensor:
        """A materialised, the level of every pair looked up."""
        stream = self.stream(call, layout)
        at, alive = pairs(layout, call.k.device)
        positions = (torch.arange(layout.rows, device=at.device) + layout.offset).clamp_min(0)  # past the last key too
        level = _level(positions.unsqueeze(-1), torch.arange(layout.keys, device=at.device))
        scores = grouped(call.q, call) @ stream.k.unsqueeze(2).mT
        fade = segments(stream.decay[..., 0], at, alive).exp().unsqueeze(2)
        return (scores * fade * _chosen(stream.levels, level)) @ stream.v.unsqueeze(2)


def _level(i: Tensor, j: Tensor) -> Tensor:
    """0 where i = j, else one more than the highest bit in which they differ; exact for any position below 2^52."""
    return torch.frexp((i ^ j).double()).exponent.long()


def _chosen(levels: Tensor, level: Tensor) -> Tensor:
    """λ [.., R, L] at the level [R, C] of each pair: [.., R, C]. Pairs that a row does not see may name any level."""
    which = level.clamp_max(levels.shape[-1] - 1).expand(*levels.shape[:-1], -1)
    return levels.gather(-1, which)


def _carried(states: dict[int, Tensor], written: Tensor, lo: int, hi: int) -> States:
    """The stretches of position hi from those of lo, as a binary counter carries; hi − lo is a power of two that
    divides lo, or what is left of one at the end, after which nothing is read."""
    bit = (hi - lo).bit_length() - 1
    while bit in states:
        written = written + states.pop(bit)
        bit += 1
    return {**states, bit: written}


def _past_the_end(call: Call) -> str | None:
    """A state that has seen its last key does not move on to the stretches of later positions."""
    start = call.mask.q_start
    if isinstance(start, Tensor) or start + call.mask.q_len <= call.mask.k_start + call.mask.kv_len:
        return None
    return "needs a key at every query's position: stretches are kept as far as keys go"


RULE = _Fenwick()

LOG_LINEAR = Variant(
    "log_linear",
    weights=_weights,
    oracle=faster(RULE, _weights, _past_the_end),
    parameters={
        "decay": Parameter("B G J", "token", draw=draw_decay, dtype="float32", squash=squash_decay),
        "levels": Parameter("B H I L", "token", draw=draw_levels, squash=softplus, sizes={"L": _levels}),
    },
    couples=frozenset({"keys"}),
    masks=MASKS - {"segments"},
    row_stochastic=False,
    scale=scale_one,
    why_not=causal_only("log_linear"),
    paper="Guo et al. 2025, arXiv 2506.04761",
    formula="A_ij = scale · q_i·k_j λ_i^(level(i, j)) Π_{j<l≤i} α_l, level the highest differing bit of i and j",
    cost="time O(J·D·E·log J), chunkwise also O(J·C·(D+E)), parallel O(I·J·(D+E)); state D·E·log J a key/value head",
)

_RECURRENT, _CHUNKWISE, _PARALLEL = forms(LOG_LINEAR, RULE, _past_the_end, growth=Growth(1, 1, "log J left out"))
IMPLEMENTATIONS = [_RECURRENT, _CHUNKWISE, replace(_PARALLEL, support=replace(_PARALLEL.support, why_not=None))]
