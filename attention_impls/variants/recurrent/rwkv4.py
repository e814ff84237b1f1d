"""RWKV-4: every channel averages its values by weights of its own, which fade at a constant rate; queries are gates.

out_i = σ(q_i) ⊙ (Σ_{j<i} e^(w (i−1−j) + k_j) ⊙ v_j + e^(u + k_i) ⊙ v_i) / (the same sum without v), element by element:
k, v and q have one size, there is no scale, and A does not exist: there would be one matrix for each channel. The
log-decay w < 0 (decay) and the bonus u of the own token, [G, D], are learned. i is the query's own position: where
no key stands there, or a hidden one, there is no bonus. A hidden key is as if it were not there. A query that sees
no key gives zeros. Causal only.

Source: Peng et al. 2023, "RWKV", arXiv 2305.13048, where w > 0 stands with a minus and is e^(parameter). The token
shift belongs to the layer. e^k overflows: every form holds its sums in units of e^m, m the largest exponent so far.
w = 0 and u = 0 is causal AFT-simple.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from attention_impls.call import Call, hide, softmax_rows
from attention_impls.contract import Parameter, Variant
from attention_impls.decayed import faster_output, scale_one
from attention_impls.delta_rule import Layout
from attention_impls.fading import kept_state, lives, pairs, segments
from attention_impls.states import MASKS, Read, Recurrence, causal_only, forms, grouped, without
from attention_impls.undefined import either, no_scale, one_size

NO_KEY = -1e30  # the exponent of an empty state: finite, so that differences are never NaN


def draw_decay(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """−e^x for normal x around −1."""
    return -torch.exp(torch.randn(shape, generator=generator) - 1.0)


def _output(call: Call, rows: Tensor) -> Tensor:
    """A softmax for each channel over the keys before the row's own, and the own one."""
    keys = call.mask.k_start + torch.arange(call.k.shape[2])
    own = call.mask.q_positions(rows).view(-1, 1, len(rows), 1) == keys  # [1|B, 1, R, J]
    visible = call.mask.visible(rows)
    seen = torch.ones_like(own) if visible is None else visible
    past = (seen & ~own).long()
    between = past.flip(-1).cumsum(-1).flip(-1) - past  # visible keys after j and before the own one
    decay, bonus = call.parameters["decay"][:, None, None], call.parameters["bonus"][:, None, None]  # [H, 1, 1, E]
    faded = torch.where(own.unsqueeze(-1), bonus, between.unsqueeze(-1).to(decay.dtype) * decay)
    logits = hide(faded + call.k.unsqueeze(2), seen.unsqueeze(-1))  # [B, H, R, J, E]
    mean = (softmax_rows(logits.mT) * call.v.mT.unsqueeze(2)).sum(-1)
    out: Tensor = call.q[:, :, rows].sigmoid() * mean
    return out


@dataclass(frozen=True, eq=False)
class _Stream:
    """k, v and log-decays [B, G, J, E]; hidden keys have k = −∞ and decay 0."""

    k: Tensor
    v: Tensor
    decay: Tensor


class _Averages(Recurrence[_Stream, Tensor]):
    """State and rows: Σ e^k v, Σ e^k, both in units of e^m, and m side by side, [.., 3 · E]. The own key comes last."""

    chunk = 16

    def layout(self, call: Call) -> Layout:
        """Row r reads after the key before its own."""
        own = Layout.of(call)
        return replace(own, offset=own.offset - 1)

    def empty(self, call: Call) -> Tensor:
        """No key."""
        zero = call.v.new_zeros((*call.v.shape[:2], 1, call.v.shape[-1]))
        return torch.cat([zero, zero, zero + NO_KEY], -1)

    def stream(self, call: Call, layout: Layout) -> _Stream:
        """k, v and the decay of every token."""
        decay = without(call.parameters["decay"][None, :, None].expand_as(call.k), layout)
        return _Stream(_logits(call.k, layout.hidden), without(call.v, layout), decay)

    def step(self, stream: _Stream, layout: Layout, j: int, state: Tensor) -> tuple[Read, Tensor]:
        """Fades the sums by one token and adds a key."""
        k, v, decay = (x[:, :, j : j + 1] for x in (stream.k, stream.v, stream.decay))
        empty = kept_state(layout, j, torch.ones_like(state[..., :1])) == 0
        values, weight, m = _parts(_emptied(state, empty))
        new = torch.maximum(m + decay, k).clamp_min(NO_KEY).detach()
        kept, added = (m + decay - new).exp(), (k - new).exp()
        after = torch.cat([values * kept + added * v, weight * kept + added, new], -1)
        return (lambda q, at: self.peek(q, after)), after

    def piece(self, stream: _Stream, layout: Layout, lo: int, hi: int, state: Tensor) -> tuple[Read, Tensor]:
        """The exponents of all pairs of the chunk in every channel, [B, G, C, C, E], the state as one more key."""
        k, v, decay = (x[:, :, lo:hi] for x in (stream.k, stream.v, stream.decay))
        alive, carries = lives(layout, lo, hi, k.device)
        values, weight, m = _parts(state)
        total = decay.cumsum(2)
        new = total.unsqueeze(3) - total.unsqueeze(2) + k.unsqueeze(2)  # [B, G, C, C, E]
        new = new.masked_fill(~alive.unsqueeze(-1), float("-inf"))
        old = (total + m).masked_fill(~carries, float("-inf"))
        top = torch.maximum(new.amax(3), old).clamp_min(NO_KEY).detach()
        added, kept = (new - top.unsqueeze(3)).exp(), (old - top).exp()
        sums = values * kept + (added * v.unsqueeze(2)).sum(3), weight * kept + added.sum(3), top
        rows = torch.cat(sums, -1)  # [B, G, C, 3 · E]

        def read(q: Tensor, at: Tensor) -> Tensor:
            return rows[:, :, None, at].expand(-1, -1, q.shape[2], -1, -1)

        return read, rows[:, :, -1:]

    def parallel(self, call: Call, layout: Layout) -> Tensor:
        """One channel after the other, its weights [B, G, I, J] materialised."""
        stream = self.stream(call, layout)
        at, alive = pairs(layout, call.k.device)
        channels = [
            _channel(segments(stream.decay[..., e], at, alive) + stream.k[..., e].unsqueeze(-2), stream.v[..., e])
            for e in range(call.v.shape[-1])
        ]
        rows = torch.stack(channels, -1).flatten(-2)  # [B, G, I, 3 · E]
        return rows.unsqueeze(2).expand(-1, -1, call.group, -1, -1)

    def unread(self, q: Tensor, call: Call) -> Tensor:
        """No key."""
        return self.peek(q, self.empty(call))

    def peek(self, q: Tensor, state: Tensor) -> Tensor:
        """The sums themselves, the same for every query."""
        return state.unsqueeze(2).expand(-1, -1, q.shape[2], q.shape[3], -1)

    def finish(self, out: Tensor, call: Call, layout: Layout) -> Tensor:
        """The own key joins, the sums are divided, and the query gates."""
        if layout.document is not None:
            begins = layout.document != layout.document.roll(1, -1)
            out = _emptied(out, begins[:, :, None, :, None])
        values, weight, m = _parts(out)
        own, v = _own(call, layout)
        top = torch.maximum(m, own).detach()
        kept, added = (m - top).exp(), (own - top).exp()
        total = weight * kept + added
        mean = (values * kept + added * v) / total.masked_fill(total == 0, 1.0)
        return mean * grouped(call.q, call).sigmoid()


def _logits(k: Tensor, hidden: Tensor | None) -> Tensor:
    return k if hidden is None else k.masked_fill(hidden.unsqueeze(-1), float("-inf"))


def _parts(sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, weight, m = sums.chunk(3, -1)
    return values, weight, m


def _emptied(sums: Tensor, where: Tensor) -> Tensor:
    """Sums [.., 3 · E] of no key where `where` [.., 1] says so."""
    values, weight, m = _parts(sums)
    zeros = torch.cat([values, weight], -1).masked_fill(where, 0.0)
    return torch.cat([zeros, m.masked_fill(where, NO_KEY)], -1)


def _channel(logs: Tensor, v: Tensor) -> Tensor:
    """Sums [B, G, I, 3] of a channel from its exponents [B, G, I, J] and values [B, G, J]."""
    m = logs.amax(-1).clamp_min(NO_KEY).detach()
    weights = (logs - m.unsqueeze(-1)).exp()
    return torch.stack([(weights @ v.unsqueeze(-1)).squeeze(-1), weights.sum(-1), m], -1)


def _own(call: Call, layout: Layout) -> tuple[Tensor, Tensor]:
    """Exponent and value [B, G, 1, I, E] of the key at each row's own position; −∞ and 0 where there is none."""
    offset = layout.offset + 1
    first = min(max(-offset, 0), layout.rows)
    last = max(min(layout.rows, layout.keys - offset), first)  # rows at whose position a key stands
    here = slice(first + offset, last + offset) if last > first else slice(0, 0)
    hidden = None if layout.hidden is None else layout.hidden[..., here]
    k = _logits(call.k[:, :, here] + call.parameters["bonus"].unsqueeze(-2), hidden)
    v = call.v[:, :, here] if hidden is None else call.v[:, :, here].masked_fill(hidden.unsqueeze(-1), 0.0)
    around = (0, 0, first, layout.rows - last)
    return pad(k, around, value=float("-inf")).unsqueeze(2), pad(v, around).unsqueeze(2)


RULE = _Averages()

RWKV4 = Variant(
    "rwkv4",
    output=_output,
    oracle=faster_output(RULE, _output),
    parameters={
        "decay": Parameter("G D", "weight", draw=draw_decay, dtype="float32"),
        "bonus": Parameter("G D", "weight"),
    },
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    scale=scale_one,
    why_not=either(causal_only("rwkv4"), no_scale("rwkv4"), one_size("rwkv4")),
    paper="Peng et al. 2023, arXiv 2305.13048",
    formula="out_i = σ(q_i) ⊙ (Σ_{j<i} e^(w (i−1−j) + k_j) ⊙ v_j + e^(u + k_i) ⊙ v_i) / (the same without v)",
    cost="time O((I+J)·E), chunkwise O(J·C·E), parallel O(I·J·E); state 3·E a key/value head",
)

IMPLEMENTATIONS = forms(RWKV4, RULE)
