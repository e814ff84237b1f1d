"""Cutting a call into parts along one axis, running each part as a call of its own, joining the outputs.

A transform gives where to cut, how to join and what cannot be cut; everything else is here. Parts are
decided and prepared once; a run only slices and joins. Refusals are asked of every part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from attention_impls.call import Call
from attention_impls.contract import Applied, Evidence, Footprint, Implementation, Output, Run
from attention_impls.evidence import Told, asked_forward, working
from attention_impls.mask import Mask

Bounds = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Part:
    """A piece of a call: bounds on each axis (None: all of it) and, once it is known, the piece's own mask."""

    rows: Bounds | None = None
    keys: Bounds | None = None
    heads: Bounds | None = None
    mask: Mask | None = None

    def of(self, call: Call) -> Call:
        """This piece of a call, as a call."""
        if self.heads:
            call = call.heads(*self.heads, self.mask)
        if self.rows:
            call = call.rows(*self.rows, self.mask)
        return call.keys(*self.keys, self.mask) if self.keys else call

    def __str__(self) -> str:
        named = {"heads": self.heads, "rows": self.rows, "keys": self.keys}
        return ", ".join(f"{axis} {b[0]}..{b[1]}" for axis, b in named.items() if b)


Split = Callable[[Call], Sequence[Part]]
Join = Callable[[Iterator[Output]], Output]
Refusal = Callable[[Call, str], str | None]


def chunked(
    inner: Implementation,
    label: str,
    *,
    split: Split,
    join: Join,
    refuses: Refusal,
    footprint: Footprint,
    needs_lse: bool = False,
) -> Implementation:
    """`inner` run on every part of a call. `refuses` says what cannot be cut before parts are looked at.

    needs_lse: parts are asked for their log-sum-exp, whether or not the caller wants the whole's.
    """

    def prepare(call: Call, lse: bool) -> Run:
        def prepared(part: Part) -> tuple[Part, Run]:
            piece = part.of(call)
            return replace(part, mask=piece.mask), inner.prepare(piece, lse or needs_lse)

        parts = [prepared(part) for part in split(call)]

        def run(call: Call) -> Output:
            whole = join(run(part.of(call)) for part, run in parts)
            return whole if lse else Output(whole.out)

        return Told(run, tuple(run for _, run in parts), {_cuts(label): len(parts) - 1})

    def refusal(call: Call, direction: str) -> str | None:
        reason = refuses(call, direction)
        if reason:
            return reason
        asked = ((part, inner.refuses(part.of(call), direction)) for part in split(call))
        return next((f"its part ({part}) {why}" for part, why in asked if why), None)

    return replace(inner, prepare=prepare, refusal=refusal, prefill=None, configure=None, footprint=footprint)


def bounds(length: int, step: int) -> list[Bounds]:
    """lo..hi from 0 to `length`, `step` at a time, the last one shorter where it must be."""
    return [(lo, min(lo + step, length)) for lo in range(0, length, step)]


def sizes(length: int, step: int) -> list[int]:
    """How long each of the bounds is."""
    return [hi - lo for lo, hi in bounds(length, step)]


def chunk_size(label: str, argument: str | None) -> int:
    """The number after ":". Raises ValueError unless it is a whole number of at least 1, plainly written."""
    plain = argument is not None and argument.isascii() and argument.isdigit() and not argument.startswith("0")
    if not plain or argument is None:
        raise ValueError(f"{label} needs a whole number of at least 1, as in {label}:128; got {argument or 'nothing'}")
    return int(argument)


def cat_along(axis: int) -> Join:
    """Joins by writing parts side by side along an axis that output and log-sum-exp share."""

    def join(parts: Iterator[Output]) -> Output:
        outs, lses = zip(*parts, strict=True)
        seen = [lse for lse in lses if lse is not None]
        return Output(torch.cat(outs, axis), torch.cat(seen, axis) if seen else None)

    return join


def was_cut(label: str) -> Callable[[Evidence, Evidence], Applied]:
    """Proof for a chunker: it made more than one part, and some operator of the bare kernel ran more often."""

    def applied(evidence: Evidence, bare: Evidence) -> Applied:
        cuts = evidence.facts.get(_cuts(label), 0)
        if not cuts:
            return Applied(False, "nothing was cut: one part holds everything")
        before, now = working(asked_forward(bare)), working(asked_forward(evidence))
        grown = [f"{op} {n}→{now[op]}" for op, n in before.items() if now[op] > n]
        if before and not grown:
            return Applied(False, f"{cuts} cuts, but no operator ran more often than without them")
        return Applied(True, f"{cuts} cuts; {', '.join(grown[:3]) or 'operators outside torch'}")

    return applied


def _cuts(label: str) -> str:
    return f"{label}.cuts"
