"""What changed against the baseline, worst first; left out where no baseline was given."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from markupsafe import Markup

from bench.compare import FINDINGS, VERDICTS, Comparison, compare, summary
from bench.report import tables
from bench.report.context import Context
from bench.report.markup import render
from bench.report.section import Section
from bench.units import percent, show

ROWS = 400  # on the page; tables/comparison.csv has them all

_TEMPLATE = """
<p><strong>{{ verdict }}</strong> Held against run <code>{{ baseline }}</code>.
{% if mean %}Geometric mean of latency against the reference, after over before: {{ mean }}.{% endif %}</p>
<ul class="chips">
{% for name, count in counts %}<li><b>{{ count }}</b> {{ name|replace("_", " ") }}</li>{% endfor %}
</ul>
{% if rows %}
<div class="scroll" tabindex="0" role="region" aria-label="changes against the baseline">
<table class="sortable"><thead><tr><th scope="col">Verdict</th><th scope="col">Cell</th><th scope="col">Metric</th>
<th scope="col">Before</th><th scope="col">After</th><th scope="col">Ratio</th><th scope="col">Why</th></tr></thead>
<tbody>
{% for c, unit in rows %}
<tr><td><span class="badge {{ 'bad' if c.verdict in findings else '' }}">{{ c.verdict|replace("_", " ") }}</span></td>
<th scope="row">{{ c.key.cell|name }}</th><td>{{ c.metric }}</td>
<td class="n">{{ number(c.before, unit) }}</td><td class="n">{{ number(c.after, unit) }}</td>
<td class="n">{{ change(c.ratio) }}</td><td>{{ c.why }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
<p class="files">{% if left %}{{ left }} more rows are in{% else %}All rows, also the unchanged, are in{% endif %}
 <code>tables/comparison.csv</code>.</p>
"""


def _render(context: Context) -> Markup:
    if context.baseline is None:
        return Markup()
    found = sorted(compare(context.baseline, context.run), key=lambda c: VERDICTS.index(c.verdict))
    tables.write(context.folder / "tables" / "comparison.csv", _COLUMNS, (_csv(c) for c in found))
    shown = [c for c in found if c.verdict != "same"]
    counts = Counter(c.verdict for c in found)
    return render(
        _TEMPLATE,
        baseline=context.baseline.header.run,
        verdict=_verdict(counts),
        mean=_mean(found),
        counts=[(name, counts[name]) for name in VERDICTS if counts[name]],
        rows=[(c, _unit(context, c.metric)) for c in shown[:ROWS]],
        findings=FINDINGS,
        left=max(0, len(shown) - ROWS),
        number=_number,
        change=lambda ratio: "–" if ratio is None or not math.isfinite(ratio) else percent(ratio),
    )


def _verdict(counts: Counter[str]) -> str:
    bad = {name: counts[name] for name in FINDINGS if counts[name]}
    if bad:
        return "Regressions: " + ", ".join(f"{count} {name}" for name, count in bad.items()) + "."
    return "No regression." if counts else "Nothing to compare: the two runs share no cell."


def _mean(found: list[Comparison]) -> str:
    """The mean with how many cells it stands on and how many could not take part, which may be the worst ones."""
    whole = summary(found, "latency")
    if not whole.used:
        return ""
    return f"{percent(whole.ratio)} over {len(whole.used)} cells; {len(whole.left_out)} cells could not take part"


_COLUMNS = ("verdict", "cell", "metric", "before", "after", "ratio", "why")


def _csv(c: Comparison) -> list[Any]:
    return [c.verdict, c.key.cell, c.metric, c.before, c.after, c.ratio, c.why]


def _unit(context: Context, metric: str) -> str:
    return context.metrics[metric].unit if metric in context.metrics else "1"


def _number(value: Any, unit: str) -> str:
    return show(value, unit) if isinstance(value, int | float) else "–" if value is None else str(value)


SECTION = Section("Changes against the baseline", 60, _render)
