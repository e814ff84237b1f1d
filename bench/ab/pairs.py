"""Pairs of fresh processes, one a side, driven alternately: the unit that a verdict rests on.

Rounds are the outer loop, cells the inner one in a new order each round, and the two sides stand next to each
other in random order. Both use the same calls a block. A cell that fails on a side costs itself only; a worker
that dies is started again without the cell it was at.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.ab.live import Died, Live, failures
from bench.ab.sides import Side
from bench.cell import Cell, to_data
from bench.protocol import Protocol
from bench.supervisor import environment_of

Tell = Callable[[str], None]
BASE, HEAD = 0, 1


@dataclass(frozen=True)
class Block:
    """One round of one cell: seconds a call on either side, and whether the head went first."""

    base: float
    head: float
    head_first: bool


@dataclass
class Pair:
    """What one pair of processes gave: blocks by cell, and (outcome, note) of what failed by (side, cell)."""

    blocks: dict[int, list[Block]] = field(default_factory=dict)
    failed: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    inner: dict[int, int] = field(default_factory=dict)

    def out(self, cell: int) -> bool:
        """True for a cell that failed on either side."""
        return (BASE, cell) in self.failed or (HEAD, cell) in self.failed


@dataclass(frozen=True)
class Driver:
    """Everything that pairs have in common. A worker stands on one device with one number of threads: all cells do."""

    base: Side
    head: Side
    cells: Mapping[int, Cell]
    protocol: Protocol
    plugins: tuple[str, ...] = ()
    seed: int = 0

    def pair(self, number: int, chosen: Sequence[int], rounds: int, tell: Tell) -> Pair:
        """One fresh pair of processes over the chosen cells."""
        found = Pair()
        while left := [i for i in chosen if not found.out(i)]:
            found.blocks = {}
            try:
                self._measure(found, number, left, rounds, tell)
            except Died as died:
                _blame(found, left, died)
            else:
                break
        return found

    def _measure(self, found: Pair, number: int, chosen: Sequence[int], rounds: int, tell: Tell) -> None:
        order = random.Random(f"{self.seed}/{number}")  # noqa: S311 - shuffles, keeps no secret
        with ExitStack() as stack:
            tell("starting")
            sides = [stack.enter_context(self._start(at, chosen)) for at in (BASE, HEAD)]
            for live in sides:
                live.wait_ready()
            stack.enter_context(_off_the_measured_core())  # not before: a child inherits where it may run
            tell("warming")
            found.inner = self._prepared(found, sides, chosen)
            for turn in range(rounds):
                tell(f"round {turn + 1} of {rounds}")
                for cell in order.sample(sorted(found.inner), len(found.inner)):
                    if not found.out(cell):
                        self._block(found, sides, cell, turn, order.random() < 0.5)
            for at, live in enumerate(sides):
                self._note(found, at, live, "check")

    def _start(self, at: int, chosen: Sequence[int]) -> Live:
        side = (self.base, self.head)[at]
        cells = [
            (i, to_data(replace(c, subject=side.subject or c.subject))) for i, c in self.cells.items() if i in chosen
        ]
        job = {"protocol": asdict(self.protocol), "plugins": list(self.plugins), "cells": cells}
        threads = next(iter(self.cells.values())).threads
        environment = environment_of("time", threads, self.protocol, {})
        return Live(at, side, job, environment, self.protocol.first_call_timeout_s)

    def _prepared(self, found: Pair, sides: Sequence[Live], chosen: Sequence[int]) -> dict[int, int]:
        """Prepares and warms both sides, then gives both the calls a block that the base found."""
        warmed: dict[int, tuple[int, int]] = {}
        for at, live in enumerate(sides):
            events = self._note(found, at, live, "prepare", cells=[i for i in chosen if not found.out(i)])
            warmed = {e["cell"]: (e["inner"], e["warm"]) for e in events if e["e"] == "warmed"} | warmed
        kept = {str(cell): both for cell, both in warmed.items() if not found.out(cell)}
        for live in sides:
            live.ask("tune", inner=kept)
        return {int(cell): inner for cell, (inner, _) in kept.items()}

    def _block(self, found: Pair, sides: Sequence[Live], cell: int, turn: int, head_first: bool) -> None:
        taken: dict[int, float] = {}
        for at in (HEAD, BASE) if head_first else (BASE, HEAD):
            events = self._note(found, at, sides[at], "block", cell=cell, round=turn)
            seconds = [e["v"][0] for e in events if e["e"] == "sample"]
            if seconds:
                taken[at] = seconds[0]
        if len(taken) == len(sides):
            found.blocks.setdefault(cell, []).append(Block(taken[BASE], taken[HEAD], head_first))

    def _note(self, found: Pair, at: int, live: Live, do: str, **fields: Any) -> list[dict[str, Any]]:
        events = live.ask(do, **fields)
        found.failed |= {(at, cell): what for cell, what in failures(events).items()}
        return events


def _blame(found: Pair, chosen: Sequence[int], died: Died) -> None:
    """The cell a worker died at, or every one where it died before any."""
    for cell in [died.cell] if died.cell is not None else chosen:
        found.failed[(died.at, cell)] = (died.death.outcome, died.death.note)


@contextmanager
def _off_the_measured_core() -> Iterator[None]:
    """Keeps this process off the core that the workers are pinned to, where there is another."""
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    others = set(sorted(before)[:-1])
    try:
        if others:
            os.sched_setaffinity(0, others)
        yield
    finally:
        os.sched_setaffinity(0, before)
