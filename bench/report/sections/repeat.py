"""How to measure it again: the whole run, or one row."""

from __future__ import annotations

import shlex

from markupsafe import Markup

from bench.report.context import Context
from bench.report.markup import render
from bench.report.section import Section
from bench.report.strangers import clean

_TEMPLATE = """
{% if command %}<p>The whole run was measured with</p><pre><code>{{ command }}</code></pre>{% endif %}
<p>One row is measured again, with its group's reference beside it, by the command at the end of that row:</p>
<pre><code>attnbench run --cell ID</code></pre>
<p>Check out commit <code>{{ commit }}</code> first; the ids are those of the
<a href="#s-every-cell">table of every cell</a> and the column <code>repeat</code> of <code>tables/cells.csv</code>.</p>
"""


def _render(context: Context) -> Markup:
    words = [clean(word) for word in context.header.command]
    return render(_TEMPLATE, command=shlex.join(words) if words else "", commit=context.header.commit)


SECTION = Section("Measure it again", 90, _render)
