"""What every section reads: the run, and one frame with a row per cell.

Columns of the frame: each coordinate of the cell under its own name (an unknown one as `cell:<name>`), then
`outcome`, `note`, `backend`, `companion`, `alarms`, `facts`, `measured` (its speed is shown), `length` and
`setting` (what tells it from others of that length); and per metric `m:<name>` (the median, in base units),
`m:<name>:low`, `:high` (95 % interval of the median, or the range of fewer than six values), `:n`, `:why` (why
there is no value) and `:reading` (the raw values). `m:peak` is the largest of the phases' peaks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.record import MEASURED, PEAKS, MetricInfo, Reading, Record, RunHeader, Scalar
from bench.stats import median, median_interval
from bench.store import Run

COORDINATES = (
    "id", "subject", "variant", "implementation", "transforms", "layer", "batch", "heads", "kv_heads",
    "q_len", "kv_len", "head_dim", "value_dim", "dtype", "mask", "inputs", "dropout", "direction", "device",
    "threads", "group", "reference",
)  # fmt: skip
FACETS = (
    "direction", "mask", "dtype", "heads", "grouped", "batch", "head_dim", "wide", "rows", "inputs", "dropout",
    "device", "threads",
)  # fmt: skip
"""What tells workloads of one length apart, the most telling first. Three stand only where they say something:
`rows` is q_len where it is not kv_len, `grouped` kv_heads where not heads, `wide` value_dim where not head_dim."""

CORE = {
    "latency": MetricInfo("s", "lower", "timed", "latency"),
    "peak": MetricInfo("B", "lower", "exact", "peak memory"),
    "error_out": MetricInfo("1", "lower", "budget", "relative error"),
}
"""What the report asks of every run; a run's own header says it better."""


@dataclass(frozen=True)
class Context:
    """One report in the making: the run, its cells, the run it is held against, and where it is written."""

    run: Run
    cells: pd.DataFrame
    metrics: Mapping[str, MetricInfo]
    facets: tuple[str, ...]
    folder: Path
    baseline: Run | None = None

    @property
    def header(self) -> RunHeader:
        """What the run says about itself."""
        return self.run.header


def context(run: Run, folder: Path, baseline: Run | None = None) -> Context:
    """The run as sections see it. Every record has a row, in the plan's order where the plan knows it."""
    metrics = {**CORE, **run.header.metrics}
    for record in run.records:  # a metric the header forgot is shown all the same, never judged
        for name, reading in record.readings.items():
            metrics.setdefault(name, MetricInfo(reading.unit, "none", "shown", name))
    cells = frame(run.records, metrics)
    varying = tuple(name for name in FACETS if cells[name].map(repr).nunique() > 1) or ("direction",)
    settings = [setting(row, varying) or "usual" for row in cells[list(varying)].to_dict("records")]
    return Context(run, cells.assign(setting=settings), metrics, varying, folder, baseline)


def frame(records: Sequence[Record], metrics: Mapping[str, MetricInfo]) -> pd.DataFrame:
    """A row per record, columns as the module says."""
    rows = [_row(record, metrics) for record in records]
    columns = list(dict.fromkeys([*COORDINATES, *FACETS, "length", *(name for row in rows for name in row)]))
    cells = pd.DataFrame(rows, columns=pd.Index(columns), dtype=object)
    cells = cells.where(cells.notna(), None)
    numbers = [f"m:{name}{part}" for name in metrics for part in ("", ":low", ":high")]
    floats = {column: cells[column].astype(float) if column in cells else math.nan for column in numbers}
    rest = cells.drop(columns=[column for column in numbers if column in cells])
    return pd.concat([rest, pd.DataFrame(floats, index=cells.index)], axis=1)


def setting(row: Mapping[Any, Any], names: Sequence[str]) -> str:
    """The named coordinates of a row as people say them: "fwd · causal · h8"."""
    return " · ".join(say(name, row[name]) for name in names if row[name] is not None)


def say(name: str, value: Scalar) -> str:
    """One coordinate in words: heads 8 is "h8", one thread "1 threads", a mask its own text."""
    return _SAY.get(name, "{}").format(value)


_SAY = {
    "heads": "h{}",
    "grouped": "g{}",
    "batch": "b{}",
    "head_dim": "d{}",
    "wide": "e{}",
    "rows": "q{}",
    "inputs": "{} inputs",
    "dropout": "dropout {}",
    "threads": "{} threads",
}


def _row(record: Record, metrics: Mapping[str, MetricInfo]) -> dict[str, Any]:
    cell = {name if name in COORDINATES else f"cell:{name}": value for name, value in record.cell.items()}
    row: dict[str, Any] = {**dict.fromkeys(COORDINATES), **cell}
    row["id"] = record.key.cell
    row["subject"] = str(row["subject"] if row["subject"] is not None else record.key.cell)
    row |= {"outcome": record.outcome, "note": record.note, "backend": record.backend}
    row |= {"companion": record.companion, "alarms": record.alarms, "facts": dict(record.facts)}
    row["length"], row["rows"] = _length(row["q_len"], row["kv_len"])
    row["grouped"] = None if row["kv_heads"] == row["heads"] else row["kv_heads"]
    row["wide"] = None if row["value_dim"] == row["head_dim"] else row["value_dim"]
    for name, reading in record.readings.items():
        row |= _numbers(name, reading)
    if "peak" not in record.readings:
        row |= _peak(record)
    row["measured"] = record.outcome in MEASURED
    return row


def _length(q_len: Scalar, kv_len: Scalar) -> tuple[int | None, Scalar]:
    """The length a cell is drawn over (the keys'), and the number of queries where that is another."""
    if not isinstance(kv_len, int) or isinstance(kv_len, bool) or kv_len < 1:
        return (q_len if isinstance(q_len, int) and q_len > 0 else None), None
    return kv_len, (None if q_len == kv_len else q_len)


def _numbers(name: str, reading: Reading) -> dict[str, Any]:
    values = [_float(value) for value in reading.values]
    if not values:
        return {f"m:{name}": math.nan, f"m:{name}:n": 0, f"m:{name}:why": reading.why_missing or "no value was stored"}
    interval = median_interval(values)
    if math.isnan(interval[0]):  # too few for 95 %: the whole range, which is as much as is known
        interval = min(values), max(values)
    numbers = {"": median(values), ":low": interval[0], ":high": interval[1], ":n": len(values), ":reading": reading}
    return {f"m:{name}{suffix}": value for suffix, value in numbers.items()}


def _float(value: float) -> float:
    """A float; an integer beyond every float (a stranger's file may hold one) is infinite."""
    return float(value) if abs(value) < 2**1000 else math.copysign(math.inf, value)


def _peak(record: Record) -> dict[str, Any]:
    """The most that was alive at once: the largest phase; nothing where a phase of the step has no number."""
    phases = {name: item for name, item in record.readings.items() if name in PEAKS}
    missing = next((item.why_missing or "no value was stored" for item in phases.values() if not item.values), None)
    if missing or not phases:
        return {"m:peak": math.nan, "m:peak:n": 0, "m:peak:why": missing or "memory was not measured"}
    value = max(max(_float(v) for v in item.values) for item in phases.values())
    return {"m:peak": value, "m:peak:low": value, "m:peak:high": value, "m:peak:n": 1}
