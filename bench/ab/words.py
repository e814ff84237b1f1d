"""A comparison in words: a table, a summary, the reason of one verdict, and a pull request's comment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from bench.ab.result import VERDICTS, Comparison, Row
from bench.errors import unknown
from bench.markdown import code, table
from bench.stats import median
from bench.units import show

COLUMNS = ("cell", "metric", "verdict", "base", "head", "change", "why")
LARGEST_COMMENT = 65_536  # what GitHub takes


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table."""
    return (row.cell, row.metric, row.verdict, _value(row.base, row), _value(row.head, row), change(row), row.why)


def _value(value: float | None, row: Row) -> str:
    return "–" if value is None else show(value, row.unit)


def change(row: Row) -> str:
    """How far it moved, with decimals and sign; – where there is no ratio."""
    if row.ratio is None or not math.isfinite(row.ratio):
        return "–"
    return f"{(row.ratio - 1) * 100:+.2f} %"


def summary(found: Comparison) -> str:
    """One line for all cells, one for what stood against what."""
    counts = Counter(row.verdict for row in found.rows)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    timed = [row.resolution for row in found.rows if row.resolution is not None and math.isfinite(row.resolution)]
    resolves = f"; the median cell resolves {median(timed):.1%}" if timed else ""
    return (
        f"base {found.base.label} against head {found.head.label}: {said or 'nothing compared'}{resolves}; "
        f"{found.seconds:.0f} s"
    )


def explain(found: Comparison, cell: str) -> str:
    """Why the verdicts on a cell were reached, with everything they rest on. Raises UserError for an unknown cell."""
    rows = [row for row in found.rows if row.cell == cell]
    if not rows:
        raise unknown("cell in this comparison", cell, {row.cell for row in found.rows})
    return "\n".join(_explained(row, found) for row in rows)


def _explained(row: Row, found: Comparison) -> str:
    lines = [f"{row.cell}, {row.metric}: {row.verdict}", f"  {row.why or 'equal on both sides'}"]
    if row.metric != "latency" or not row.screened:
        return "\n".join(lines)
    rules = found.rules
    lines += [
        f"  screen: {len(row.screened)} pairs of processes, {sum(map(len, row.screened))} rounds, "
        f"{row.inner} calls a block",
        f"    median ratio by pair: {_ratios(row.screened)}",
        f"    all rounds: {change(row)}, 95 % interval {_pct(row.low)} to {_pct(row.high)}",
        f"    corrected p (q) {row.q:.3g}, must be below {rules.get('rate', 0.05):g}; "
        f"the change must exceed {(row.limit or 0) * 100:.2f} %",
        f"    these rounds resolve {(row.resolution or math.nan) * 100:.2f} %",
    ]
    if row.confirmed:
        lines.append(f"  fresh pairs: {_ratios(row.confirmed)}; all but {rules.get('allowed', 1):g} must agree")
    else:
        lines.append("  no fresh pairs: the screen did not suspect it")
    return "\n".join(lines)


def _ratios(pairs: Sequence[Sequence[tuple[float, float]]]) -> str:
    return ", ".join(_pct(median([head / base for base, head in pair])) for pair in pairs if pair)


def _pct(ratio: float | None) -> str:
    return "–" if ratio is None or not math.isfinite(ratio) else f"{(ratio - 1) * 100:+.2f} %"


def comment(found: Comparison) -> str:
    """Markdown for a pull request, worst first, never longer than GitHub takes; every text in it is escaped."""
    rows = [row for row in found.worst_first() if row.verdict != "same"]
    verdict = "**Worse.**" if found.regressed else "Nothing worse."
    head = f"{verdict} {code(summary(found))}\n\n"
    while True:
        text = head + _table(rows) + _left_out(found, len(rows))
        if len(text.encode()) <= LARGEST_COMMENT:
            return text
        rows = rows[: len(rows) * 3 // 4]


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    # In type, all of it: a stranger's text could mention people, link, or be HTML anywhere else.
    shown = [[code(text) for text in cells(row)] for row in rows]
    return table(COLUMNS, shown) + "\n\n"


def _left_out(found: Comparison, shown: int) -> str:
    differing = sum(row.verdict != "same" for row in found.rows)
    same = len(found.rows) - differing
    cut = f"{differing - shown} rows more did not fit here. " if differing > shown else ""
    return f"{cut}{same} verdicts are the same. Machine {code(found.machine)}.\n"
