"""Error of the output over the sequence length: on the whole, at its worst, and against what the dtype allows."""

from __future__ import annotations

from markupsafe import Markup

from bench.report.charts import charts
from bench.report.context import Context
from bench.report.markup import render
from bench.report.section import Section

_PARTS = {
    "error_out": "Relative L2 error against the contender's own definition in float64, over the sampled rows.",
    "error_out_worst_row": "The same of the worst row: what a single query may suffer.",
    "error_out_floors": "As a multiple of the rounding floor, the error that the definition itself makes in this "
    "dtype: near 1 is as good as the dtype gets.",
}


def _render(context: Context) -> Markup:
    known = [name for name in _PARTS if name in context.metrics] or list(_PARTS)[:1]
    return Markup().join(_part(context, name, opened=number == 0) for number, name in enumerate(known))


def _part(context: Context, metric: str, opened: bool) -> Markup:
    label = context.metrics[metric].label if metric in context.metrics else metric
    return render(
        "<details{% if opened %} open{% endif %}><summary>{{ label }}</summary>"
        '<p class="note">{{ words }}</p>{{ body }}</details>',
        opened=opened,
        label=label,
        words=_PARTS[metric],
        body=charts(context, metric, heads=False, shared=False),
    )


SECTION = Section("Error over length", 40, _render)
