"""How one implementation's cost grows: exact peak bytes and seconds of a forward at doubling lengths, in a child.

n = 128, 256, … until the next forward would take too long or too many bytes, going by the last two, or the whole
would outlast its time. What `prepare` makes (masks, plans) is not in the bytes, and no gradient is asked for.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attention_impls import catalogue
from attention_impls.catalogue import Subject
from bench.cell import Cell
from bench.device import Device, Phases
from bench.devices import all_devices
from bench.garbage import uncollected
from bench.measure import Emit, guarded
from bench.step import Step, make, refuses

FIRST = 128
CALLS, FEWEST = 7, 3  # timed blocks at each length; fewer, but these, once they have taken ENOUGH_S
ENOUGH_S, BLOCK_S = 0.5, 1e-3
STEEPEST = 16.0  # a cost that seems to grow faster than n⁴ tells of a slow first length


@dataclass(frozen=True)
class Limits:
    """How far to go: seconds and bytes of one forward, and seconds for all of one implementation."""

    seconds: float
    bytes: int
    whole_s: float


@dataclass(frozen=True)
class Point:
    """One length: peak bytes of the forward (None where they cannot be followed), its seconds, and what all took."""

    n: int
    bytes: int | None
    seconds: float
    spent: float
    why: str = ""


def measured(cells: Sequence[tuple[int, Cell]], limits: Limits, emit: Emit) -> None:
    """Emits `start` and `point` for each length of each cell, then `ended` with the reason, or `failed`."""
    device = all_devices()[cells[0][1].device]
    for index, cell in cells:
        points: list[Point] = []
        begun = time.monotonic()
        while True:
            at = _sized(cell, points[-1].n * 2 if points else FIRST)
            emit("start", index, phase=f"n = {at.workload.q_len}")
            why = over(points, limits, time.monotonic() - begun) or refuses(catalogue.find(cell.subject), at)
            if why:
                emit("ended", index, note=why)
                break
            follow = not points or not points[-1].why
            point = guarded(device, index, emit, partial(_point, device, catalogue.find(cell.subject), at, follow))
            if point is None:
                break
            points.append(point)
            emit("point", index, n=point.n, bytes=point.bytes, seconds=point.seconds, why=point.why)


def _sized(cell: Cell, n: int) -> Cell:
    return replace(cell, workload=replace(cell.workload, q_len=n, kv_len=n))


def over(points: Sequence[Point], limits: Limits, elapsed: float) -> str:
    """Which limit the next length would exceed, by the growth between the last two; "" where it seems to fit."""
    if len(points) < 2:
        return ""
    foreseen: Sequence[tuple[str, Callable[[Point], float], float]] = (
        (f"{limits.seconds:g} s a step", lambda p: p.seconds, limits.seconds),
        (f"{limits.bytes / 2**20:g} MiB", lambda p: p.bytes or 0, limits.bytes),
        (f"{limits.whole_s:g} s for all of it", lambda p: p.spent, limits.whole_s - elapsed),
    )
    for text, read, limit in foreseen:
        before, last = read(points[-2]), read(points[-1])
        if last * min(max(last / before if before else 2.0, 1.0), STEEPEST) > limit:
            return f"n = {points[-1].n * 2} would exceed {text}"
    return ""


def _point(device: Device, subject: Subject, cell: Cell, follow: bool) -> Point:
    begun = time.monotonic()
    step = make(subject, cell, 1)
    with step.mode():
        seconds = _seconds(device, step)
        held = device.memory(Phases(step.forward)) if follow else None
    why = held.why_missing if held else "more allocator events than can be followed exactly"
    return Point(cell.workload.q_len, held.peak_forward if held else None, seconds, time.monotonic() - begun, why)


def _seconds(device: Device, step: Step) -> float:
    """The median of a few blocks after a warm call."""
    once: Callable[[], Any] = step.once(0)
    once()
    inner = max(1, math.ceil(BLOCK_S / max(device.block(once, 1), 1e-9)))
    taken: list[float] = []
    with uncollected():
        while len(taken) < FEWEST or (len(taken) < CALLS and sum(taken) * inner < ENOUGH_S):
            taken.append(device.block(once, inner) / inner)
    return statistics.median(taken)
