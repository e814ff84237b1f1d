"""A run as a short table for the terminal: what was fast, lean and right, and what failed with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from bench.record import MEASURED, PEAKS, Record
from bench.units import show

COLUMNS = ("contender", "outcome", "latency", "to reference", "peak memory", "error")


def groups(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by what they share, in the order of the run."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(str(record.cell["group"]), []).append(record)
    return found


def rows(records: list[Record]) -> list[list[str]]:
    """A row a record of one group, the fastest first, those without a time last."""
    reference = next((r for r in records if r.cell["subject"] == r.cell["reference"]), None)
    return [_row(r, reference) for r in sorted(records, key=lambda r: _middle(r, "latency") or float("inf"))]


def _row(record: Record, reference: Record | None) -> list[str]:
    seconds, base = _middle(record, "latency"), _middle(reference, "latency") if reference else None
    peaks = [p for p in (_middle(record, name) for name in PEAKS) if p is not None]
    return [
        str(record.cell["subject"]) + (" (companion)" if record.companion else ""),
        record.outcome,
        show(seconds, "s"),
        f"{seconds / base:.2f}×" if seconds and base else "–",
        show(max(peaks), "B") if peaks else "–",
        show(_middle(record, "error_out"), "1") if record.outcome in MEASURED else record.note[:80],
    ]


def _middle(record: Record, metric: str) -> float | None:
    reading = record.readings.get(metric)
    return median(reading.values) if reading is not None and reading.values else None
