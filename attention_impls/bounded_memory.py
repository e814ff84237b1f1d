"""Slots that a stream of keys and values is written into, each slot a softmax-weighted mean of what it was given.

Slot s after key j: K̃_s = Σ_l P_sl k_l, Ṽ_s = Σ_l P_sl v_l, P_s = softmax of control[l, s] over the visible keys l
≤ j. A query reads out = Σ_s softmax_s(scale · q·K̃_s) Ṽ_s after its last key. What a slot holds counts as one key
of its summed weight, so that a chunk of keys joins it by one softmax: nothing overflows, and no later key can move
an earlier row. Everything in float32 at least. Source: Peng et al. 2021, arXiv 2110.02488 (its control is exp of
this one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, softmax_rows
from attention_impls.delta_rule import Layout
from attention_impls.tiling import spans


class Slots(NamedTuple):
    """What has been written so far: log-sums [B, G, S, 1], mean keys [B, G, S, D], mean values [B, G, S, E]."""

    total: Tensor
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class Stream:
    """A causal call read key by key; its parameter control is [B, G, J, S]. `layout` as for the delta rule."""

    call: Call
    layout: Layout

    def cut(self, lo: int, hi: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys lo..hi [B, G, C, D], their values and their control [B, G, S, C], −inf for hidden ones."""
        parts = (self.call.k, self.call.v, self.call.parameters["control"])
        k, v, control = (x[:, :, lo:hi].to(self.dtype) for x in parts)
        control, hidden = control.mT, self.layout.hidden
        return k, v, control if hidden is None else control.masked_fill(hidden[:, None, :, lo:hi], float("-inf"))

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        return torch.promote_types(self.call.q.dtype, torch.float32)

    def empty(self) -> Slots:
        """Slots that nothing was written into."""
        batch, groups, _, count = self.call.parameters["control"].shape
        sizes = (1, self.call.k.shape[3], self.call.v.shape[3])
        total, keys, values = (self.call.k.new_zeros((batch, groups, count, n), dtype=self.dtype) for n in sizes)
        return Slots(total.fill_(float("-inf")), keys, values)

    def after(self, slots: Slots, lo: int, hi: int) -> Slots:
        """The slots with keys lo..hi written into them too."""
        k, v, control = self.cut(lo, hi)
        logits = torch.cat([slots.total, control], -1)
        old, new = softmax_rows(logits).split([1, hi - lo], -1)
        return Slots(lse_rows(logits).unsqueeze(-1), old * slots.keys + new @ k, old * slots.values + new @ v)

    def read(self, slots: Slots, lo: int, hi: int, q: Tensor, at: Tensor) -> Tensor:
        """q [B, G, H/G, R, D], reading after keys `at` [R] of the chunk lo..hi -> [B, G, H/G, R, E]."""
        k, v, control = self.cut(lo, hi)
        sees = torch.arange(hi - lo + 1, device=q.device) <= at[:, None, None] + 1  # what the slots hold, and keys
        logits = torch.cat([slots.total, control], -1).unsqueeze(2)
        old, new = softmax_rows(hide(logits, sees)).split([1, hi - lo], -1)  # [B, G, R, S, 1 or C]
        keys = old * slots.keys.unsqueeze(2) + new @ k.unsqueeze(2)
        values = old * slots.values.unsqueeze(2) + new @ v.unsqueeze(2)
        return read(q, keys.unsqueeze(2), values.unsqueeze(2))


def read(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Scaled q [..., R, D] on slots of its own, [..., R, S, D] and [..., R, S, E] -> [..., R, E]."""
    shares = torch.softmax(keys @ q.unsqueeze(-1), -2)  # [..., R, S, 1]
    return (shares * values).sum(-2)


def chunkwise(call: Call, layout: Layout, chunk: int, slots: Slots | None = None, start: int = 0) -> Tensor:
    """out [B, H, I, E]: chunks of keys from `start` on, `slots` holding those before it."""
    stream = Stream(call, layout)
    slots = stream.empty() if slots is None else slots
    q = call.q.to(stream.dtype).unflatten(1, (call.k.shape[1], -1)) * call.scale  # [B, G, H/G, I, D]
    unread = min(max(-layout.offset, 0), layout.rows)  # queries that stand before the first key
    outs = [q.new_zeros((*q.shape[:3], unread, call.v.shape[-1]))]
    for lo, hi in ((start + lo, start + hi) for lo, hi in spans(layout.keys - start, chunk)):
        first, last = layout.read_at(lo, hi)
        if last > first:
            at = (torch.arange(first, last, device=q.device) + layout.offset).clamp_max(hi - 1) - lo
            outs.append(stream.read(slots, lo, hi, q[:, :, :, first:last], at))
        slots = stream.after(slots, lo, hi)
    return torch.cat(outs, 3).flatten(1, 2).to(call.q.dtype)


def prefill(call: Call) -> Slots:
    """The slots after the keys that stand before the call's first query: a cache for decoding."""
    stream = Stream(call, Layout.of(call))
    return stream.after(stream.empty(), 0, stream.layout.before_queries)
