"""The numbers beside the page: CSV files that a spreadsheet opens without running anything."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.record import Scalar
from bench.report.context import Context
from bench.report.strangers import defuse, repeat_command


def write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Scalar]]) -> Path:
    """One CSV file (UTF-8, RFC 4180), every cell defused."""
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as sink:
        table = csv.writer(sink)
        table.writerow([defuse(column) for column in columns])
        table.writerows([[defuse(value) for value in row] for row in rows])
    return path


def cells(context: Context, path: Path) -> Path:
    """`cells.csv`: a row per cell with its coordinates, outcome, sentence and every metric in base units."""
    frame = context.cells
    plain = [name for name in frame.columns if not str(name).startswith("m:") and name not in _DERIVED]
    numbers = [(name, suffix) for name in context.metrics for suffix in ("", ":low", ":high", ":n", ":why")]
    numbers = [pair for pair in numbers if f"m:{pair[0]}{pair[1]}" in frame]
    heads = [f"{name}{suffix.replace(':', ' ')} [{context.metrics[name].unit}]" for name, suffix in numbers]
    columns = [*plain, *(f"m:{name}{suffix}" for name, suffix in numbers)]
    rows = ([_plain(value) for value in row] for row in frame[columns].itertuples(index=False))
    commands = [repeat_command(str(cell)) for cell in frame["id"]]
    return write(path, [*plain, *heads, "repeat"], ([*row, c] for row, c in zip(rows, commands, strict=True)))


def samples(context: Context, path: Path) -> Path:
    """`samples.csv`: every raw value of every timed metric, in the order it was taken."""
    timed = [name for name, info in context.metrics.items() if info.noise == "timed"]
    rows = (
        (record.key.cell, name, reading.unit, i, value, *(_at(getattr(reading, c), i) for c in _SAMPLE_COLUMNS))
        for record in context.run.records
        for name in timed
        if (reading := record.readings.get(name)) is not None
        for i, value in enumerate(reading.values)
    )
    return write(path, ["cell", "metric", "unit", "number", "value", *_SAMPLE_COLUMNS], rows)


_DERIVED = ("setting", "measured", "rows", "grouped", "wide")  # columns that only the page needs
_SAMPLE_COLUMNS = ("round", "process", "inner", "at")


def _at(values: Sequence[float], index: int) -> float | None:
    return values[index] if values else None


def _plain(value: Any) -> Scalar:
    """A frame's value as CSV has it: nothing for what is missing, sentences joined, facts as name=value."""
    if isinstance(value, tuple):
        return " | ".join(str(item) for item in value)
    if isinstance(value, dict):
        return "; ".join(f"{name}={item}" for name, item in value.items())
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else value
