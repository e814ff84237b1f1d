"""Peak memory of one step over the sequence length, with the slopes of n and n²."""

from __future__ import annotations

from markupsafe import Markup

from bench.report.charts import charts
from bench.report.context import Context
from bench.report.markup import render
from bench.report.section import Section

_INTRO = """
<p class="note">The most bytes alive at once beyond the inputs, over the phases of the step (forward; backward where
there is one). An exact count: the same in every run. The dashed lines have the slopes of n and n².</p>
"""


def _render(context: Context) -> Markup:
    return render(_INTRO) + charts(context, "peak", guides=True)


SECTION = Section("Peak memory over length", 30, _render)
