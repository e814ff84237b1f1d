"""Opt-in (`--max-memory`): the longest sequence whose whole step stays within so many bytes, found in at most 8 probes.

Asked of each contender once, at the longest length that a suite gives it; its other axes stay.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from attention_impls import catalogue
from bench.cell import Cell
from bench.device import Device, Held
from bench.devices import all_devices
from bench.longest import FIRST, STEP, Longest, Probe, longest
from bench.metric import Asked, Found, Metric, missing
from bench.record import Reading
from bench.step import make, refuses

USUAL = 64 * 2**20  # bytes, where `--metric longest` came without --max-memory


class _NotFollowed(Exception):
    """A probe whose bytes cannot be followed, with the reason."""


def _longest(asked: Asked) -> Found:
    cell, limit = asked.cell, asked.protocol.max_memory or USUAL
    if cell.workload.q_len != cell.workload.kv_len:
        return Found(missing("token", "as many queries as keys are needed, so that one length is asked for"))
    if why := refuses(catalogue.find(cell.subject), _sized(cell, FIRST)):
        return Found(missing("token", f"it cannot take other lengths: {why}"))
    try:
        found = longest(_measured(cell), limit)
    except _NotFollowed as error:
        return Found(missing("token", str(error)))
    return Found(Reading("token", (float(found.n),)), _facts(found, limit))


def _facts(found: Longest, limit: int) -> dict[str, str | int | bool]:
    tried = ", ".join(f"{p.n}: {p.peak:.0f} B" for p in found.probes)
    return {
        "longest.limit": limit,
        "longest.verified": found.verified,
        "longest.why": found.why,
        "longest.probes": len(found.probes),
        "longest.tried": tried,
    }


def _measured(cell: Cell) -> Callable[[int], Probe]:
    device = all_devices()[cell.device]
    _peak(device, _sized(cell, STEP))  # what a process does once must not count as a probe's seconds

    def probe(n: int) -> Probe:
        start = time.monotonic()
        peak = _peak(device, _sized(cell, n))
        return Probe(n, peak, time.monotonic() - start)

    return probe


def _peak(device: Device, cell: Cell) -> float:
    """The most bytes alive at once in one step; infinite where the device ran out of memory."""
    try:
        step = make(catalogue.find(cell.subject), cell, 1)
        with step.mode():
            held: Held = device.memory(step.phases())
    except RuntimeError as error:  # out of memory is one, on every device
        if not device.is_out_of_memory(error):
            raise
        device.recover()
        return math.inf
    if held.why_missing:
        raise _NotFollowed(held.why_missing)
    return float(max(p for p in (held.peak_forward, held.peak_backward, held.peak_optimise) if p is not None))


def _sized(cell: Cell, n: int) -> Cell:
    return replace(cell, workload=replace(cell.workload, q_len=n, kv_len=n))


METRICS = (
    Metric("longest", "token", "higher", "shown", "longest sequence within --max-memory", "own", ask=_longest,
           optional=True, longest_only=True),
)  # fmt: skip
