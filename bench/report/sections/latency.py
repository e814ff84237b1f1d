"""Time of one step over the sequence length."""

from __future__ import annotations

from markupsafe import Markup

from bench.report.charts import charts
from bench.report.context import Context
from bench.report.markup import render
from bench.report.section import Section

_INTRO = """
<p class="note">Median time of one step; the band is the 95 % interval of that median within this run (another run on
a shared machine may differ by more). Both axes are logarithmic: twice the slope is twice the power of n. Hollow
markers are cells over their precision budget.</p>
"""


def _render(context: Context) -> Markup:
    return render(_INTRO) + charts(context, "latency")


SECTION = Section("Latency over length", 20, _render)
