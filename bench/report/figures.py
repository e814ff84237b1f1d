"""Pictures over log axes: each panel as SVG for the page, and all of them as PNG files beside it.

Figures are objects of their own (no pyplot, nothing global); texts are never read as mathematics.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.record import MetricInfo
from bench.report.palette import INK, REFERENCE, Look
from bench.report.panels import Panel
from bench.report.strangers import drawable
from bench.report.svg import inline
from bench.units import show

GRID, PAPER = "#c9ccd1", "#ffffff"
PANELS = 12  # in one PNG file
_STYLE: dict[Any, Any] = {
    "text.usetex": False, "text.parse_math": False, "axes.formatter.use_mathtext": False, "svg.fonttype": "none",
    "font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans"], "font.size": 9, "path.simplify": False,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": GRID, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9, "legend.frameon": False,
    "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0, "ytick.minor.size": 0,
    "axes.facecolor": PAPER, "figure.facecolor": PAPER, "savefig.facecolor": "auto",
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """What the panels of one picture share: the metric, the looks, the value axis and the guide lines."""

    metric: MetricInfo
    looks: Mapping[str, Look]
    low: float
    high: float
    guides: bool = False


def plot(panels: Sequence[Panel], metric: MetricInfo, looks: Mapping[str, Look], *, guides: bool = False) -> Plot:
    """The shared frame of `panels`, its value axis just wide enough for the contenders in `looks`."""
    shown = [panel.points[panel.points["subject"].isin(looks)] for panel in panels]
    lows = [float(points["low"].min()) for points in shown if not points.empty]
    highs = [float(points["high"].max()) for points in shown if not points.empty]
    low, high = min(lows, default=1.0), max(highs, default=1.0)
    margin = max(2.2 if guides else 1.25, (10 * low / high) ** 0.5)  # at least a decade, or noise looks like a trend
    return Plot(metric, looks, low / margin, high * margin, guides)


def picture(panel: Panel, plot: Plot, salt: str, alt: str) -> Markup:
    """One panel as SVG to stand in the page; its title is left to the page.

    `salt` is mixed into the ids: the same gives the same bytes, another for each picture keeps ids apart.
    """
    with mpl.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(4.4, 3.0))
        figure.patch.set_alpha(0)
        _draw(figure.add_axes((0.19, 0.15, 0.79, 0.82)), panel, plot)  # one frame for all, so that axes line up
        sink = io.StringIO()
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    return inline(sink.getvalue(), alt)


def sheet(plots: Sequence[tuple[Panel, Plot]], title: str) -> bytes:
    """Up to PANELS panels with their titles and a legend as a PNG file."""
    columns = 2 if len(plots) == 4 else min(3, len(plots))
    present = {name for panel, _ in plots for name in panel.points["subject"]}
    rows = -(-len(plots) // columns)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(max(4.4 * columns, 7), 3.0 * rows + 1.2), layout="constrained")
        figure.suptitle(drawable(title, 100), fontweight="bold")
        for number, (panel, plot) in enumerate(plots):
            axes = figure.add_subplot(rows, columns, number + 1)
            _draw(axes, panel, plot)
            axes.set_title(drawable(panel.title, 64), loc="left")
        handles = [_handle(look, drawable(name)) for name, look in plots[0][1].looks.items() if name in present]
        figure.legend(handles=handles, loc="outside lower center", ncols=2 if columns < 3 else 3)
        sink = io.BytesIO()
        figure.savefig(sink, format="png", dpi=110, metadata={"Software": None})
    return sink.getvalue()


def _draw(axes: Axes, panel: Panel, plot: Plot) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2 if plot.metric.unit == "B" else 10)
    axes.set_ylim(plot.low, plot.high)
    for name, look in reversed(list(plot.looks.items())):  # the reference, first in the legend, lies on top
        points = panel.points[panel.points["subject"] == name]
        if not points.empty:
            _line(axes, points, look)
    xs = sorted(set(panel.points["x"]))
    if plot.guides and len(xs) > 1:
        _guides(axes, panel, plot, xs[0], xs[-1])
    _ticks(axes, xs, plot)
    axes.set_xlabel("sequence length (tokens)" if panel.axis == "length" else panel.axis)
    axes.set_ylabel(drawable(plot.metric.label))
    axes.grid(color=GRID, linewidth=0.5, alpha=0.7)


def _line(axes: Axes, points: Any, look: Look) -> None:
    """A contender: the median with its interval; hollow markers where it is over its precision budget."""
    style: Any = {"color": look.colour, "linewidth": 2.0 if look is REFERENCE else 1.5}
    if len(points) > 1:
        axes.fill_between(points["x"], points["low"], points["high"], color=look.colour, alpha=0.18, linewidth=0)
    else:
        axes.vlines(points["x"], points["low"], points["high"], **style)
    axes.plot(points["x"], points["value"], **style)
    for hollow, part in points.groupby(points["outcome"] != "ok"):
        face = PAPER if hollow else look.colour
        axes.plot(
            part["x"], part["value"], linestyle="none", marker=look.marker, markersize=5.5, zorder=3,
            markerfacecolor=face, markeredgecolor=look.colour if hollow else PAPER,
            markeredgewidth=1.2 if hollow else 0.5,
        )  # fmt: skip


def _guides(axes: Axes, panel: Panel, plot: Plot, start: float, end: float) -> None:
    """Slopes to compare with: n² just above the highest value, n just below the lowest last one."""
    points = panel.points
    top, last = points.loc[points["high"].idxmax()], points[points["x"] == end]
    anchors = (
        (2, float(top["x"]), float(top["high"]) * 1.4, "O(n²)"),
        (1, end, float(last["low"].min()) / 1.4, "O(n)"),
    )
    for power, at, value, name in anchors:
        line = [value * (x / at) ** power for x in (start, end)]
        axes.plot([start, end], line, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.55, zorder=1)
        axes.annotate(
            name, (at, value), xytext=(-2, 2 if power == 2 else -3), textcoords="offset points", ha="right",
            va="bottom" if power == 2 else "top", alpha=0.8, fontsize=8, annotation_clip=True,
        )  # fmt: skip


def _ticks(axes: Axes, xs: Sequence[float], plot: Plot) -> None:
    step = -(-len(xs) // 7)
    shown = [x for i, x in enumerate(reversed(xs)) if i % step == 0]
    axes.set_xticks(shown, [_count(x) for x in shown])
    values = round_values(plot.low, plot.high, plot.metric.unit)
    axes.set_yticks(values, [_value(value, plot.metric.unit) for value in values])
    axes.minorticks_off()
    if xs:
        spread = (xs[-1] / xs[0]) ** 0.06 if len(xs) > 1 else 1.5
        axes.set_xlim(xs[0] / spread, xs[-1] * spread)


def round_values(low: float, high: float, unit: str, most: int = 7) -> list[float]:
    """At most `most` round values between low and high: powers of two for bytes, else 1-2-5 steps or decades."""
    if unit == "B":
        first, last, base = math.ceil(math.log2(low)), math.floor(math.log2(high)), 2.0
        stride = max(1, -(-(last - first + 1) // most))
        return [base**power for power in range(first, last + 1) if power % stride == 0]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [v for p in powers for v in (10.0**p, 2 * 10.0**p, 5 * 10.0**p) if low <= v <= high]
    if len(fine) <= most:
        return fine
    stride = max(1, -(-len(powers) // most))
    return [10.0**p for p in powers if p % stride == 0 and low <= 10.0**p <= high]


def _value(value: float, unit: str) -> str:
    """A tick's text; plain ratios below a hundredth as powers of ten."""
    if unit == "1" and value < 0.01:
        return f"{value:.0e}".replace("e-0", "e-")
    return show(value, unit).replace(".00 ", " ")


def _count(x: float) -> str:
    """A number of tokens: 4096 as it is, 131072 as 128k."""
    return f"{x / 1024:.0f}k" if x >= 8192 and x % 1024 == 0 else f"{x:.0f}"


def _handle(look: Look, name: str) -> Line2D:
    return Line2D([], [], color=look.colour, marker=look.marker, markersize=5.5, linewidth=1.6, label=name)
