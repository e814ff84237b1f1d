"""Every cell with its outcome, its sentence, its numbers and the command that repeats it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from markupsafe import Markup

from bench.record import OUTCOMES, MetricInfo
from bench.report.context import Context
from bench.report.markup import render
from bench.report.section import Section
from bench.report.strangers import repeat_command
from bench.units import show

ROWS = 2500  # of about 1 kB each, so that the page stays under 3 MB; tables/cells.csv has them all
MEANING = {
    "ok": "right, and within the precision budget of its dtype",
    "imprecise": "this function, but over the precision budget at this dtype: its speed is shown, it cannot win",
    "wrong": "not this function: no speed is reported",
    "raised": "it raised an exception, which the sentence quotes",
    "not_applied": "a transform did not do what its name says, so the numbers would be another cell's",
    "out_of_memory": "it asked for more memory than there was",
    "timeout": "it did not end within its time limit",
    "crashed": "the interpreter died or left without finishing",
    "killed": "somebody other than the kernel's out-of-memory killer ended it",
    "unsupported": "this combination cannot be done; the sentence says why",
    "absent": "a package, compiler or device is missing on this machine; the sentence says how to get it",
}
_MAIN = ("latency", "peak", "error_out", "error_out_floors")
_EXPECTED = (
    "prepare", "peak_forward", "held_for_backward", "peak_backward", "error_out_worst_row", "error_out_max_abs",
    "error_dq", "error_dk", "error_dv", "error_lse", "nonfinite", "distance_softmax", "model_flops", "dispatched_ops",
    "flops_rate", "bandwidth", "tokens_rate", "minor_faults", "weight_bytes", "peak_optimiser",
    "optimiser_scratch", "optimiser_state", "gradients", "longest",
)  # fmt: skip
"""Metrics that stand in columns shown on request; one that is not named here is news and is shown at once."""

_TEMPLATE = """
<ul class="chips">{% for outcome, count in counts %}<li><b>{{ count }}</b> <a href="#outcome-{{ outcome }}">
{{- outcome|replace("_", " ") }}</a></li>{% endfor %}</ul>
<p class="filters" hidden><label>Find <input type="search" id="find" placeholder="a word of any column"></label>
<label>Outcome <select id="outcome"><option value="">all</option>
{% for outcome, _ in counts %}<option>{{ outcome|replace("_", " ") }}</option>{% endfor %}</select></label>
<output id="found"></output></p>
{% if extra %}<style>#all:not(:checked)~.scroll .cells :is(td,th):nth-child(n+{{ fixed + 1 }}){display:none}</style>
<input type="checkbox" id="all"> <label for="all">show {{ extra }} more metrics</label>{% endif %}
<div class="scroll tall" tabindex="0" role="region" aria-label="every cell">
<table class="cells sortable"><thead><tr>
{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}
<tr{% if row.outcome != "ok" %} class="{{ 'half' if row.measured else 'bad' }}"{% endif %}>
{#- #}<th scope="row">{{ row.subject|name }}
{%- if row.companion %} <small>companion</small>{% endif %}
<td>{{ row.direction }}<td>{{ row.mask|name }}<td>{{ row.dtype }}<td class="n">{{ row.length or "–" }}
{#- #}<td>{{ row.shape }}
<td><span class="badge {{ row.outcome }}">{{ row.outcome|replace("_", " ") }}</span>
{%- for number in row.main %}<td class="n">{{ number }}{% endfor %}
<td class="say">{{ row.note }}
{%- for alarm in row.alarms %}<span class="warn">alarm: {{ alarm }}</span>{% endfor %}
{%- for why in row.why %}<small>{{ why }}</small>{% endfor %}<td>{{ row.backend|name }}<td>
{%- if row.command %}<code class="cmd">{{ row.command }}</code>{% else %}the id is not one of attnbench's{% endif %}
{%- for number in row.more %}<td class="n">{{ number }}{% endfor %}

{% endfor %}
</tbody></table></div>
{% if left %}<p class="note">{{ left }} more rows are in <code>tables/cells.csv</code> only.</p>{% endif %}
<p class="files">In base units: <code>tables/cells.csv</code>; raw samples: <code>tables/samples.csv</code>.</p>
<h3>Why a cell has no numbers</h3>
<dl class="outcomes">{% for outcome, meaning in meanings.items() %}
<dt id="outcome-{{ outcome }}">{{ outcome|replace("_", " ") }}</dt><dd>{{ meaning }}</dd>{% endfor %}</dl>
"""


def _render(context: Context) -> Markup:
    main, more = _columns(context)
    cells = context.cells.assign(against=_against_reference(context))
    records = cells.to_dict("records")
    shown = records if len(records) <= ROWS else sorted(records, key=lambda row: row["outcome"] == "ok")[:ROWS]
    counts = Counter(str(row["outcome"]) for row in records)
    labels = [_label(name, context.metrics[name]) for name in (*main, *more)]
    first = ["Subject", "Step", "Mask", "Dtype", "n", "Shape", "Outcome"]
    heads = [
        *first,
        *labels[:1],
        "× reference",
        *labels[1 : len(main)],
        "What to know",
        "Back-end",
        "Measure this row again",
    ]
    return render(
        _TEMPLATE,
        counts=[(outcome, counts[outcome]) for outcome in OUTCOMES if counts[outcome]],
        columns=[*heads, *labels[len(main) :]],
        fixed=len(heads),
        extra=len(more),
        rows=[_row(row, main, more, context) for row in shown],
        left=len(records) - len(shown),
        meanings=MEANING,
    )


def _columns(context: Context) -> tuple[list[str], list[str]]:
    """Metrics with a number in this run: those always shown (latency first, whatever happens), those on request."""
    filled = [name for name in context.metrics if context.cells[f"m:{name}"].notna().any()]
    news = [name for name in filled if name not in (*_MAIN, *_EXPECTED)]
    main = [name for name in _MAIN[1:] if name in filled]
    return ["latency", *main, *news], [name for name in filled if name in _EXPECTED]


def _against_reference(context: Context) -> list[float | None]:
    """Each cell's latency divided by that of its group's reference."""
    cells = context.cells
    rows = list(zip(cells["group"], cells["subject"], cells["reference"], cells["m:latency"], strict=True))
    bases = {group: value for group, subject, reference, value in rows if subject == reference and value > 0}
    return [value / bases[group] if group in bases and value > 0 else None for group, _, _, value in rows]


def _row(row: dict[Any, Any], main: list[str], more: list[str], context: Context) -> dict[str, Any]:
    numbers = {name: _number(row, name, context.metrics[name]) for name in (*main, *more)}
    against = "–" if row["against"] is None or math.isnan(row["against"]) else f"×{row['against']:.3g}"
    missing = [(name, row.get(f"m:{name}:why")) for name in _MAIN[:3]] if row["measured"] else []
    return row | {
        "shape": _shape(row),
        "why": [f"no {name}: {why}" for name, why in missing if isinstance(why, str)],
        "main": [numbers[main[0]], against, *(numbers[name] for name in main[1:])],
        "more": [numbers[name] for name in more],
        "command": _command(row),
    }


def _command(row: dict[Any, Any]) -> Markup | None:
    command = repeat_command(str(row["id"]))
    return None if command is None else Markup("{}").format(command)


def _shape(row: dict[Any, Any]) -> str:
    parts = [("b", "batch"), ("h", "heads"), ("g", "grouped"), ("q", "rows"), ("d", "head_dim"), ("e", "wide")]
    return " ".join(f"{letter}{row[name]}" for letter, name in parts if row[name] is not None)


def _number(row: dict[Any, Any], name: str, info: MetricInfo) -> str:
    """A metric's value for people, with the half width of its interval where it was sampled."""
    value = row.get(f"m:{name}", math.nan)
    if math.isnan(value):
        return "–"
    half = (row[f"m:{name}:high"] - row[f"m:{name}:low"]) / 2
    spread = f" ±{half / abs(value):.0%}" if info.noise == "timed" and value and math.isfinite(half) and half else ""
    return show(value, info.unit) + spread


def _label(name: str, info: MetricInfo) -> str:
    return info.label or name


SECTION = Section("Every cell", 50, _render)
