"""What needs no statistics: outcomes, bytes, operations and errors of both sides, held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.ab.result import Row
from bench.ab.sides import Side
from bench.compare import compare
from bench.header import make_header
from bench.plan import Plan
from bench.protocol import Protocol
from bench.record import Record, Scalar
from bench.store import Run
from bench.supervisor import judge


def judged(plan: Plan, side: Side, protocol: Protocol, plugins: Sequence[str]) -> Run:
    """Right and memory of every cell of the plan, on one side; a run that no file holds."""
    records: list[Record] = []
    for group in plan.groups:
        records += judge(group, protocol, place=side.place, plugins=plugins)
    return Run(make_header(plan, protocol), tuple(records), True, Path())


def rows(before: Run, after: Run) -> list[Row]:
    """A row for each outcome, exact metric and error of both runs."""
    found = []
    for one in compare(before, after):
        info = after.header.metrics.get(one.metric)
        why = one.why or (f"{one.before}, then {one.after}" if one.metric == "outcome" else "")
        unit = info.unit if info else ""
        base, head = _number(one.before), _number(one.after)
        found.append(Row(one.key.cell, one.metric, one.verdict, why, base, head, unit, one.ratio))
    return found


def _number(value: Scalar) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
