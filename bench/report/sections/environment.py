"""Where and how it was measured, and what the suite asked for that is not in the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from bench.report.context import Context
from bench.report.markup import render
from bench.report.section import Section

LEFT_OUT = 40  # reasons on the page

_TEMPLATE = """
<div class="facts">
{% for title, facts in tables %}
<table><caption>{{ title }}</caption><tbody>
{% for key, value in facts %}<tr><th scope="row">{{ key }}</th><td>{{ value }}</td></tr>
{% else %}<tr><td>nothing recorded</td></tr>{% endfor %}
</tbody></table>
{% endfor %}
</div>
<h3>Left out</h3>
{% if left_out %}
<p class="note">The suite asked for these; the plan dropped them for the reason given.</p>
<ul>{% for why, whats in left_out %}<li>{{ why }}: {{ whats[:12]|join(", ") }}
{%- if whats|length > 12 %} and {{ whats|length - 12 }} more{% endif %}</li>{% endfor %}</ul>
{% if more %}<p class="note">and {{ more }} more reasons.</p>{% endif %}
{% else %}<p>Nothing: every combination that the suite asked for has a record.</p>{% endif %}
"""


def _render(context: Context) -> Markup:
    header = context.header
    run = {
        "run": header.run,
        "created": header.created,
        "suite": header.plan.get("suite", "–"),
        "reference": header.plan.get("reference", "–"),
        "commit": header.commit,
        "uncommitted changes": header.dirty or "none",
        "environment digest": header.environment_digest,
        "protocol digest": header.protocol_digest,
    }
    tables = [
        ("Run", run),
        ("Machine", header.machine),
        ("Environment", header.environment),
        ("Protocol", header.protocol),
    ]
    left_out = _left_out(header.left_out)
    return render(
        _TEMPLATE,
        tables=[(title, [(key, _text(value)) for key, value in facts.items()]) for title, facts in tables],
        left_out=left_out[:LEFT_OUT],
        more=max(0, len(left_out) - LEFT_OUT),
    )


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "–" if value is None else "yes" if value is True else "no" if value is False else str(value)


def _left_out(items: tuple[Mapping[str, str], ...]) -> list[tuple[str, list[str]]]:
    """What was left out by reason, the most frequent first; `why` is the reason, the other words say what."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for item in items:
        what = " ".join(value for key, value in item.items() if key != "why")
        reasons[item.get("why", "no reason was stored")].append(what)
    return sorted(reasons.items(), key=lambda pair: -len(pair[1]))


SECTION = Section("Machine, environment, protocol", 70, _render)
