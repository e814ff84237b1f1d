"""What each variant is: formula, source, cost, and what it approximates."""

from __future__ import annotations

from markupsafe import Markup

from bench.report.context import Context
from bench.report.markup import render
from bench.report.section import Section

_FIRST = ("formula", "paper", "cost", "approximates")

_TEMPLATE = """
{% for variant, doc, facts, count in methods %}
<article class="method"><h3>{{ variant|name }} <small>{{ count }} cells</small></h3>
{% if doc %}<p>{{ doc|long }}</p>{% endif %}
<dl>{% for key, value in facts %}<dt>{{ key }}</dt><dd>{{ value|long }}</dd>{% endfor %}</dl></article>
{% else %}<p>The run carries no texts of its variants.</p>
{% endfor %}
"""


def _render(context: Context) -> Markup:
    counts = context.cells["variant"].astype(str).value_counts()
    methods = [
        (name, texts.get("doc", ""), _facts(dict(texts)), int(counts.get(name, 0)))
        for name, texts in sorted(context.header.texts.items())
    ]
    return render(_TEMPLATE, methods=methods)


def _facts(texts: dict[str, str]) -> list[tuple[str, str]]:
    """The known texts in their order, then any other; empty ones say nothing and are left out."""
    names = [*_FIRST, *(name for name in texts if name not in (*_FIRST, "doc"))]
    return [(name, texts[name]) for name in names if texts.get(name)]


SECTION = Section("Methods", 80, _render)
