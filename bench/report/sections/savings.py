"""What every way to spend less memory saves, what it costs in time and error, and from which length on it pays."""

from __future__ import annotations

from markupsafe import Markup

from bench.report.context import Context
from bench.report.markup import render
from bench.report.savings import savings
from bench.report.section import Section
from bench.units import show

_TEMPLATE = """
<p class="note">Each contender over the same one without its transforms (a bare one over the group's reference): peak
bytes of the step above its inputs, time, error of the output. Below ×1 is less. <em>Pays from</em>: the first measured
length from which on it needs fewer bytes.</p>
{% for table in tables %}
<div class="scroll" tabindex="0" role="region" aria-label="savings, {{ table.setting }}">
<table class="matrix"><caption>{{ table.setting }}</caption>
<thead><tr><th scope="col">Contender</th><th scope="col">Held against</th>
{% for n in table.lengths %}<th scope="col">n = {{ n }}: bytes</th><th scope="col">time</th>{% endfor %}
<th scope="col">Error</th><th scope="col">Pays from</th>
{% if table.limit %}<th scope="col">Longest within {{ table.limit|show("B") }}</th>{% endif %}</tr></thead>
<tbody>
{% for row in table.rows %}
<tr><th scope="row">{{ row.subject|name }}</th>
<td>{% if row.against == row.subject %}itself{% else %}{{ row.against|name }}{% endif %}</td>
{% for n in table.lengths %}{% set ratio = at(row, n) %}
<td class="n">{{ ratio.bytes|times if ratio else "–" }}</td><td class="n">{{ ratio.time|times if ratio else "–" }}</td>
{% endfor %}
<td class="n">{{ row.ratios[-1].error|times }}</td>
<td class="n">{% if row.against == row.subject %}–{% elif row.pays %}{{ row.pays }}{% else %}not here{% endif %}</td>
{% if table.limit %}<td class="n">{% if row.longest %}{{ row.longest.n|show("token") }}
 <span class="badge" title="{{ row.longest.why }}">{{ "measured" if row.longest.verified else "predicted" }}</span>
{% else %}–{% endif %}</td>{% endif %}</tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
"""


def _render(context: Context) -> Markup:
    tables = savings(context)
    if not tables:
        return Markup()
    return render(_TEMPLATE, tables=tables, show=show, at=lambda row, n: {r.length: r for r in row.ratios}.get(n))


SECTION = Section("What saves memory, at which price", 35, _render)
