"""The trend page: every cell of a machine night after night, small, with its levels and changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from bench.errors import CannotDo
from bench.history import Trend, alarms
from bench.report.markup import document, part, render
from bench.units import percent

WIDTH, HEIGHT, EDGE = 320.0, 72.0, 6.0
LEAST_SPAN = math.log(1.1)  # a quiet cell fills no more of its picture than 10 %


def build_trends(trends: Sequence[Trend], machine: str, out: Path) -> Path:
    """Writes the page of a machine's trends to `<out>/trends-<machine>.html`; its path. Raises CannotDo."""
    runs = {night.run: night.created for trend in trends for night in trend.nights}
    rows = [{"cell": trend.cell, "picture": picture(trend), "said": _said(trend)} for trend in trends]
    text = document(
        "trends.html",
        machine=machine,
        style=part("style.css"),
        trends=rows,
        alarms=alarms(trends),
        nights=len(runs),
        newest=max(runs.values(), default="–"),
    )
    path = out / f"trends-{machine}.html"
    try:
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise CannotDo(f"{path} cannot be written: {error.strerror}; try --out DIR") from error
    return path


def picture(trend: Trend) -> Markup:
    """A trend as a small drawing: a dot a night, a line a level, a bar at each change."""
    finite = [v for v in trend.values if math.isfinite(v)]
    if not finite:
        return Markup("")
    middle = (min(finite) + max(finite)) / 2
    half = max((max(finite) - min(finite)) / 2, LEAST_SPAN / 2)
    count = max(len(trend.values) - 1, 1)

    def x(night: float) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * night / count

    def y(value: float) -> float:
        return HEIGHT / 2 - (HEIGHT / 2 - EDGE) * (value - middle) / half

    dots = "".join(f"M{x(i):.1f} {y(v):.1f}h.01" for i, v in enumerate(trend.values) if math.isfinite(v))
    lines = "".join(
        f'<path class="level" d="M{x(s.first):.1f} {y(s.value):.1f}H{x(s.last - 1):.1f}"/>' for s in trend.levels
    )
    runs = {night.run: i for i, night in enumerate(trend.nights)}
    bars = "".join(
        f'<path class="{c.verdict}" d="M{x(runs[c.run] - 0.5):.1f} {EDGE}V{HEIGHT - EDGE}"/>' for c in trend.changes
    )
    return render(
        '<svg viewBox="0 0 {{ w }} {{ h }}" preserveAspectRatio="none" role="img" aria-label="{{ said }}">{{ bars }}'
        '{{ lines }}<path d="{{ dots }}" stroke="var(--soft)" stroke-width="3" stroke-linecap="round"/></svg>',
        w=f"{WIDTH:g}",
        h=f"{HEIGHT:g}",
        said=_said(trend),
        dots=Markup(dots),  # noqa: S704 - numbers only; longer than a stranger's text may be
        bars=Markup(bars),  # noqa: S704 - numbers and our own words
        lines=Markup(lines),  # noqa: S704 - numbers
    )


def _said(trend: Trend) -> str:
    """A trend in words."""
    finite = [v for v in trend.values if math.isfinite(v)]
    if not finite:
        return f"{len(trend.nights)} nights, none with a ratio; last outcome {trend.nights[-1].outcome}"
    last = f"{len(finite)} nights, last {math.exp(finite[-1]):.3g}× the reference"
    if math.isfinite(trend.rolling):
        last += f", {percent(math.exp(finite[-1]) / trend.rolling)} from the rolling median"
    changed = "; ".join(f"{percent(c.ratio)} since {c.created[:10]} ({c.verdict})" for c in trend.changes[-3:])
    return f"{last}; {changed}" if changed else last
