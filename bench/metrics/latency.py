"""Seconds a step, as raw blocks; what preparing costs; and minor page faults, which tell heap from kernel."""

from __future__ import annotations

from bench.metric import Metric, Timed, missing
from bench.record import Reading


def _latency(timed: Timed) -> Reading:
    taken = timed.samples
    if not taken:
        return missing("s", "no round was finished")
    return Reading(
        "s",
        tuple(s.seconds for s in taken),
        round=tuple(s.round for s in taken),
        process=tuple(s.process for s in taken),
        inner=tuple(s.inner for s in taken),
        at=tuple(s.at for s in taken),
    )


def _prepare(timed: Timed) -> Reading:
    return Reading("s", (timed.prepare_s,))


def _faults(timed: Timed) -> Reading:
    if not timed.samples:
        return missing("fault", "no round was finished")
    ordered = sorted(s.faults for s in timed.samples)
    return Reading("fault", (ordered[len(ordered) // 2],))


METRICS = (
    Metric("latency", "s", "lower", "timed", "latency", "time", _latency),
    Metric("prepare", "s", "lower", "shown", "preparing, once", "time", _prepare),
    Metric("minor_faults", "fault", "lower", "shown", "minor page faults a step", "time", _faults),
)
