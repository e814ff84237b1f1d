"""Night after night: each cell's ratio to its reference over the runs of one machine, and where it changed level.

A night's value is the ratio to the pinned reference measured in the same rounds, so that a slow hour cancels. A level
is believed after two nights on it and charged to the first. What somebody accepted begins a new baseline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from bench.levels import Level, segment
from bench.ratios import to_reference
from bench.record import MEASURED, PEAKS, Reading, Record
from bench.store import Accepted, Night, Run

ROLLING = 7  # nights of the rolling median that a single night is held against
SMALLEST = 0.03  # a change of level below this is no news


@dataclass(frozen=True)
class Change:
    """A cell's change of level: charged to the first run on the new one, against the last on the old.

    ratio: new level over old. nights: runs on the new level so far. verdict: "worse", "better" or "accepted".
    """

    cell: str
    run: str
    before: str
    commit: str
    commit_before: str
    created: str
    ratio: float
    nights: int
    verdict: str
    why: str = ""
    current: bool = False


@dataclass(frozen=True)
class Trend:
    """One cell over its nights: log ratios (NaN where there is none), levels, changes, and the rolling median."""

    cell: str
    nights: tuple[Night, ...]
    values: tuple[float, ...]
    levels: tuple[Level, ...]
    changes: tuple[Change, ...]
    rolling: float


def nights_of(run: Run) -> Iterator[Night]:
    """The rows of a run's history: one a cell that was asked for."""
    head = run.header
    references = {(r.cell.get("group"), r.cell.get("subject")): r for r in run.records}
    for record in run.records:
        if record.companion:
            continue
        reference = references.get((record.cell.get("group"), record.cell.get("reference")))
        yield Night(
            run=head.run,
            created=head.created,
            commit=head.commit + ("+" if head.dirty else ""),
            suite=str(head.plan.get("suite", "")),
            protocol=record.key.protocol,
            cell=record.key.cell,
            outcome=record.outcome,
            ratio=_ratio(record, reference),
            seconds=_middle(record.readings.get("latency")),
            peak=_largest(record.readings.get(name) for name in PEAKS),
        )


def _ratio(record: Record, reference: Record | None) -> float:
    """Its latency over the reference's in the same rounds; NaN where one of them has none, 1 for the reference."""
    if record.outcome not in MEASURED or reference is None or "latency" not in record.readings:
        return math.nan
    if record.cell.get("subject") == record.cell.get("reference"):
        return 1.0
    found = to_reference(record.readings["latency"], reference.readings.get("latency"))
    return math.nan if isinstance(found, str) else found.ratio


def _middle(reading: Reading | None) -> float:
    return median(reading.values) if reading is not None and reading.values else math.nan


def _largest(readings: Iterable[Reading | None]) -> float:
    return max((max(r.values) for r in readings if r is not None and r.values), default=math.nan)


def trends(nights: Iterable[Night], accepted: Sequence[Accepted] = ()) -> list[Trend]:
    """Every cell's trend under the protocol of its newest night, worst current change first."""
    by_cell: dict[str, list[Night]] = {}
    for night in sorted(nights, key=lambda n: n.created):
        by_cell.setdefault(night.cell, []).append(night)
    found = [_trend(cell, rows, accepted) for cell, rows in by_cell.items()]
    return sorted(found, key=lambda t: (-_alarm(t), t.cell))


def _alarm(trend: Trend) -> float:
    return max((c.ratio for c in trend.changes if c.current and c.verdict == "worse"), default=0.0)


def _trend(cell: str, rows: Sequence[Night], accepted: Sequence[Accepted]) -> Trend:
    rows = [night for night in rows if night.protocol == rows[-1].protocol]
    values = [math.log(n.ratio) if n.ratio > 0 and math.isfinite(n.ratio) else math.nan for n in rows]
    levels = segment(np.array([values]))[0]
    taken = {a.run: a.why for a in accepted if a.cell == cell}
    changes = [_change(rows, *pair, taken, pair[1] is levels[-1]) for pair in pairwise(levels)]
    known = [v for v in values[-ROLLING - 1 : -1] if math.isfinite(v)]
    rolling = math.exp(median(known)) if len(known) >= 5 else math.nan
    news = tuple(c for c in changes if abs(math.log(c.ratio)) > math.log1p(SMALLEST))
    return Trend(cell, tuple(rows), tuple(values), tuple(levels), news, rolling)


def _change(rows: Sequence[Night], old: Level, new: Level, taken: dict[str, str], current: bool) -> Change:
    first, before = rows[new.first], rows[new.first - 1]
    ratio = math.exp(new.value - old.value)
    # Accepted on any night of the new level: people look a day or two later.
    why = next((taken[n.run] for n in rows[new.first : new.last] if n.run in taken), None)
    verdict = "accepted" if why is not None else "worse" if ratio > 1 else "better"
    nights = sum(math.isfinite(n.ratio) for n in rows[new.first : new.last])
    return Change(first.cell, first.run, before.run, first.commit, before.commit, first.created, ratio, nights, verdict,
                  why or "", current)  # fmt: skip


def alarms(found: Iterable[Trend]) -> list[Change]:
    """What is worse now and nobody has accepted, the worst first."""
    current = [c for trend in found for c in trend.changes if c.current and c.verdict == "worse"]
    return sorted(current, key=lambda c: -c.ratio)
