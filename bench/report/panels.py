"""Which points stand in which small picture: a panel for each setting of the axes that vary in a run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import pandas as pd

from bench.report.context import Context, setting


@dataclass(frozen=True)
class Panel:
    """Points of one metric over one axis: `points` has subject, x, value, low, high, outcome; sorted by x."""

    title: str
    axis: str
    points: pd.DataFrame


def over_length(context: Context, metric: str) -> list[Panel]:
    """A panel per setting over the sequence length; settings known at one length only where nothing else shows them."""
    cells = context.cells.dropna(subset=["length"])
    lengths = cells.groupby("setting", sort=False)["length"].nunique()
    heads = set(_head_sweeps(context)["setting"])
    shown = [name for name, count in lengths.items() if count > 1 or name not in heads]
    ordered = sorted(shown, key=lambda name: lengths[name] < 2)
    panels = [_panel(str(name), "length", cells[cells["setting"] == name], metric) for name in ordered]
    return [panel for panel in panels if not panel.points.empty]


def over_heads(context: Context, metric: str) -> list[Panel]:
    """A panel per setting and length at which several numbers of heads were measured."""
    sweeps = _head_sweeps(context)
    panels = [_panel(str(title), "heads", rows, metric) for title, rows in sweeps.groupby("sweep", sort=False)]
    return [panel for panel in panels if not panel.points.empty]


def undrawn(context: Context, metric: str) -> str:
    """A sentence on cells without a point: failed ones by outcome, zeros, which no log axis shows."""
    cells = context.cells
    counts = Counter(str(outcome) for outcome in cells[~cells["measured"].astype(bool)]["outcome"])
    measured = cells[cells["measured"].astype(bool)][f"m:{metric}"]
    parts = [f"{count} {outcome.replace('_', ' ')}" for outcome, count in counts.most_common()]
    parts += _some(int(measured.isna().sum()), "without this number")
    parts += _some(int((measured <= 0).sum()), "exactly zero, which a log axis cannot show")
    parts += _some(int(measured.map(math.isinf).sum()), "infinite")
    return f"Not drawn: {', '.join(parts)}. Their rows are in the table of every cell." if parts else ""


def _some(count: int, words: str) -> list[str]:
    return [f"{count} {words}"] if count else []


def _head_sweeps(context: Context) -> pd.DataFrame:
    """Cells of the settings in which more than one number of heads meets the same length."""
    cells = context.cells.dropna(subset=["length", "heads"])
    if "heads" not in context.facets or cells.empty:
        return cells.iloc[:0].assign(sweep="")
    others = [name for name in context.facets if name not in ("heads", "grouped")]
    titles = [" · ".join(filter(None, (setting(row, others), f"n{row['length']}"))) for row in cells.to_dict("records")]
    cells = cells.assign(sweep=titles)
    counts = cells.groupby("sweep")["heads"].nunique()
    return cells[cells["sweep"].map(counts) > 1]


def _panel(title: str, axis: str, rows: pd.DataFrame, metric: str) -> Panel:
    column = f"m:{metric}"
    rows = rows[rows["measured"].astype(bool) & rows[column].map(lambda value: 0 < value < math.inf)]
    points = pd.DataFrame(
        {
            "subject": rows["subject"].astype(str),
            "x": rows[axis].astype(float),
            "value": rows[column],
            "low": rows[f"{column}:low"].clip(lower=rows[column] / 1e3),  # a log axis has no zero
            "high": rows[f"{column}:high"].clip(upper=rows[column] * 1e3),
            "outcome": rows["outcome"],
        }
    )
    return Panel(title, axis, points[points["x"] > 0].sort_values("x"))
