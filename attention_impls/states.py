"""Attention with a state: keys stream past, a state takes them in, and each query reads it after its last key.

What a mechanism is made of (how one key, a chunk of keys, or all of them at once are taken in) it tells as a
`Recurrence`; `forms` makes its implementations: recurrent (with prefill and resume), chunkwise and parallel. Causal
only. A hidden key is as if it were not there: it neither writes nor decays. Documents empty the state.
Everything runs in float32 at least: a state in half precision forgets.
Shared by the entrants of variants/recurrent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Output, Run, Support, Variant
from attention_impls.delta_rule import Layout
from attention_impls.tiling import checked

MASKS = frozenset({"causal", "key_lengths", "segments", "empty_rows"})  # what a state can follow
CHUNK = 64
LINEAR = Growth(1, 1)  # a state of a fixed size, whatever came before

Stream = TypeVar("Stream")
State = TypeVar("State")

Read = Callable[[Tensor, Tensor], Tensor]
"""(q [B, G, H/G, R, D], the key [R] after which each row reads, the piece's first being 0) -> [B, G, H/G, R, E]."""


class Recurrence(ABC, Generic[Stream, State]):
    """How a mechanism takes keys in. A stream is what it makes of all keys; a piece of keys gives what it reads from
    the state before it and its own keys, and the state after it."""

    chunk = CHUNK

    def layout(self, call: Call) -> Layout:
        """After which key each row reads."""
        return Layout.of(call)

    @abstractmethod
    def empty(self, call: Call) -> State:
        """The state before any key."""

    @abstractmethod
    def stream(self, call: Call, layout: Layout) -> Stream:
        """What is made of the keys of a call in float32 at least; hidden ones leave no trace."""

    @abstractmethod
    def step(self, stream: Stream, layout: Layout, j: int, state: State) -> tuple[Read, State]:
        """Key j alone."""

    @abstractmethod
    def piece(self, stream: Stream, layout: Layout, lo: int, hi: int, state: State) -> tuple[Read, State]:
        """Keys lo..hi together."""

    @abstractmethod
    def parallel(self, call: Call, layout: Layout) -> Tensor:
        """All rows against all keys, without a state: [B, G, H/G, I, E]."""

    def digest(self, stream: Stream, layout: Layout, upto: int, state: State) -> State:
        """The state after the first `upto` keys."""
        for lo in range(0, upto, self.chunk):
            state = self.piece(stream, layout, lo, min(lo + self.chunk, upto), state)[1]
        return state

    def sized(self, chunk: int) -> int:
        """`chunk`, if chunks may have this size. Raises ValueError otherwise."""
        return checked("chunk", chunk)

    def unread(self, q: Tensor, call: Call) -> Tensor:
        """Rows [B, G, H/G, R, D] that stand before every key."""
        return q.new_zeros((*q.shape[:-1], call.v.shape[-1]))

    def peek(self, q: Tensor, state: State) -> Tensor:
        """Rows that read a state as it was handed over."""
        raise NotImplementedError("rows of this mechanism read no earlier than their own key")

    def finish(self, out: Tensor, call: Call, layout: Layout) -> Tensor:
        """What is made of the rows [B, G, H/G, I, E] that were read."""
        return out


def widened(call: Call) -> Call:
    """The call with its floating tensors in float32 at least."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    return call.map(lambda t: t.to(wide))


def grouped(q: Tensor, call: Call) -> Tensor:
    """[B, H, I, D] -> [B, G, H/G, I, D]: the heads that read one state lie side by side."""
    heads: Tensor = q.unflatten(1, (call.k.shape[1], call.group))
    return heads


def without(x: Tensor, layout: Layout) -> Tensor:
    """x [.., G, J, ...] with zeros at hidden keys."""
    return x if layout.hidden is None else x.masked_fill(layout.hidden.unsqueeze(-1), 0.0)


def swept(
    rule: Recurrence[Any, Any],
    call: Call,
    layout: Layout,
    advance: Callable[[int, int, Any], tuple[Read, Any]],
    step: int,
    state: Any,
    start: int = 0,
) -> Tensor:
    """Rows [B, G, H/G, I, E] of a wide call: `step` keys at a time from `start` on, `state` holding those before."""
    q = grouped(call.q * call.scale, call)
    early = min(max(start - layout.offset, 0), layout.rows)  # rows that read before the first key to come
    waiting = q[..., :early, :]
    outs = [rule.peek(waiting, state) if early and start else rule.unread(waiting, call)]
    for lo in range(start, layout.keys, step):
        hi = min(lo + step, layout.keys)
        read, state = advance(lo, hi, state)
        first, last = layout.read_at(lo, hi)
        if last > first:
            at = (torch.arange(first, last, device=q.device) + layout.offset).clamp_max(hi - 1) - lo
            outs.append(read(q[..., first:last, :], at))
    return torch.cat(outs, 3)


def forms(
    variant: Variant,
    rule: Recurrence[Any, Any],
    why_not: Callable[[Call], str | None] | None = None,
    *,
    growth: Growth = LINEAR,
    at_once: Growth | None = None,
) -> list[Implementation]:
    """The three forms of a recurrence; the recurrent one decodes from a cache, chunkwise takes `chunk`.

    `growth` is claimed of these two, `at_once` of the parallel form.
    """
    support = Support(masks=variant.masks, starts=frozenset({"zero", "aligned", "any"}), why_not=why_not or documents)
    decoding = {"prefill": partial(_prefill, rule), "resume": partial(_resume, rule)}
    return [
        Implementation("recurrent", variant, partial(_one_by_one, rule), support, growth=growth, **decoding),  # type: ignore[arg-type]
        replace(_chunkwise(variant, rule, support, rule.chunk), growth=growth),
        Implementation("parallel", variant, partial(_at_once, rule), support, growth=at_once),
    ]


def _answer(rule: Recurrence[Any, Any], out: Tensor, call: Call, layout: Layout, dtype: torch.dtype) -> Output:
    return Output(rule.finish(out, call, layout).flatten(1, 2).to(dtype))


def _recurrent(rule: Recurrence[Any, Any], layout: Layout, call: Call, state: Any, start: int) -> Output:
    wide = widened(call)
    stream = rule.stream(wide, layout)
    out = swept(rule, wide, layout, lambda lo, _, s: rule.step(stream, layout, lo, s), 1, state, start)
    return _answer(rule, out, wide, layout, call.q.dtype)


def _one_by_one(rule: Recurrence[Any, Any], call: Call, lse: bool) -> Run:
    layout = rule.layout(call)
    return lambda call: _recurrent(rule, layout, call, rule.empty(widened(call)), 0)


def _prefill(rule: Recurrence[Any, Any], call: Call) -> Any:
    """The state after the keys that stand before the call's first query."""
    wide, layout = widened(call), Layout.of(call)
    return rule.digest(rule.stream(wide, layout), layout, layout.before_queries, rule.empty(wide))


def _resume(rule: Recurrence[Any, Any], call: Call, cache: Any) -> Output:
    return _recurrent(rule, rule.layout(call), call, cache, Layout.of(call).before_queries)


def by_pieces(rule: Recurrence[Any, Any], layout: Layout, call: Call, chunk: int) -> Output:
    """The chunkwise form of a call."""
    wide = widened(call)
    stream = rule.stream(wide, layout)
    out = swept(rule, wide, layout, partial(rule.piece, stream, layout), chunk, rule.empty(wide))
    return _answer(rule, out, wide, layout, call.q.dtype)


def _chunkwise(variant: Variant, rule: Recurrence[Any, Any], support: Support, chunk: int) -> Implementation:
    rule.sized(chunk)

    def configure(chunk: int = rule.chunk) -> Implementation:
        return _chunkwise(variant, rule, support, chunk)

    def prepare(call: Call, lse: bool) -> Run:
        layout = rule.layout(call)
        return lambda call: by_pieces(rule, layout, call, chunk)

    return Implementation("chunkwise", variant, prepare, support, configure=configure)


def _at_once(rule: Recurrence[Any, Any], call: Call, lse: bool) -> Run:
    layout = rule.layout(call)

    def run(call: Call) -> Output:
        wide = widened(call)
        scaled = replace(wide, q=wide.q * wide.scale)
        return _answer(rule, rule.parallel(scaled, layout), wide, layout, call.q.dtype)

    return run


def causal_only(name: str) -> Callable[[Call], str | None]:
    """A state knows what came before, and nothing else."""
    text = f"{name} is causal only: a state knows what came before; add `causal`"
    return lambda call: None if call.mask.causal else text


def documents(call: Call) -> str | None:
    """The kernels empty the state where a document begins: each must be one run of tokens, the same for queries."""
    own, keys = call.mask.q_segments, call.mask.k_segments
    if own is None or keys is None:
        return None
    if own.shape != keys.shape or not torch.equal(own, keys) or call.mask.q_start != call.mask.k_start:
        return "takes packed documents only where queries and keys are the same tokens"
    if all(row.unique_consecutive().numel() == row.unique().numel() for row in keys):
        return None
    return "takes packed documents only where each is one run of tokens"
