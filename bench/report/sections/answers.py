"""The first screen: who is fastest, leanest and most exact at each length, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from bench.report.answers import QUESTIONS, Answer, answer, tally
from bench.report.context import Context, setting
from bench.report.markup import render
from bench.report.section import Section

MATRIX = ("direction", "mask", "dtype")


@dataclass(frozen=True)
class Matrix:
    """One table: a column per workload, a row per question; the answers stand in the order of the columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Answer, ...], ...]


_TEMPLATE = """
<ul class="headline">
{% for title, why, leaders, ties, asked in tallies %}
<li><span class="what">{{ title }}</span>
{% if leaders %}<strong>{{ leaders[0][0]|name }}</strong>
 <span class="how">in {{ leaders[0][1] }} of {{ asked }} workloads{% if leaders|length > 1 %}; next
 {{ leaders[1][0]|name }} ({{ leaders[1][1] }}){% endif %}{% if ties %}; {{ ties }} tied{% endif %}</span>
{% elif ties %}<span class="how">tied in all {{ ties }} workloads</span>
{% else %}<span class="how">no answer: {{ why }}</span>
{% endif %}</li>
{% endfor %}
</ul>
{% for matrix in matrices %}
<div class="scroll" tabindex="0" role="region" aria-label="winners, {{ matrix.title }}">
<table class="matrix"><caption>{{ matrix.title }}</caption>
<thead><tr><th scope="col"><span class="hidden">question</span></th>
{% for column in matrix.columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in matrix.rows %}
<tr><th scope="row">{{ row[0].question.title }}</th>
{% for a in row %}
<td>{% if a.winners %}
{% for winner in a.winners[:2] %}<b>{{ winner|name }}</b>{% if not loop.last %}, {% endif %}{% endfor %}
{% if a.winners|length > 2 %} and {{ a.winners|length - 2 }} more{% endif %}
{% if a.winners|length > 1 %} <span class="badge">tie</span>{% endif %}
 <span class="how">{{ a.value|show(units[a.question.metric])|replace(" ", "\u00a0") }}{{ than(a) }}</span>
{% if a.kin %} <span class="how">same function: {{ a.kin|name }}{{ kin(a) }}</span>{% endif %}
{% if a.imprecise %} <span class="how warn">imprecise, so no winner: {{ a.imprecise|join(", ")|name }}</span>{% endif %}
{% else %}<span class="how">none: {{ a.why }}</span>{% endif %}</td>
{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
<p class="note">A column is a workload, as the table's title says unless the
column says otherwise: {{ words }}. {{ references }} "Same
function" is the best contender that computes what the reference computes, where the winner computes something else.
Winners are declared only among cells whose outcome is <a href="#outcome-ok">ok</a>.
Fastest: median of the timed rounds; a tie where the 95 % interval of the ratio, round by round, holds 1 (or, without
common rounds, where the intervals of the medians overlap). Leanest: most bytes alive
at once beyond the inputs. Most exact: relative L2 error of the output against the contender's own definition in
float64; a tie within a tenth.</p>
"""


def _render(context: Context) -> Markup:
    cells = context.cells.dropna(subset=["group"])
    matrices = [_matrix(str(title), rows, context) for title, rows in cells.groupby(_titles(cells), sort=False)]
    if not matrices:
        return render("<p>This run holds no record of a cell yet, so there is nothing to answer.</p>")
    return render(
        _TEMPLATE,
        matrices=matrices,
        tallies=[_tally(i, matrices) for i in range(len(QUESTIONS))],
        units={q.metric: context.metrics[q.metric].unit if q.metric in context.metrics else "1" for q in QUESTIONS},
        than=_than,
        kin=_kin,
        words=_words(context),
        references=_references(cells),
    )


def _than(a: Answer) -> str:
    """How the winner stands to the reference (or the reference, if it won, to the next), in a few words."""
    if len(a.winners) > 1 and a.reference in a.winners:
        return ", the reference among them"
    if a.ratio is not None:
        return f", {_factor(a, a.ratio)}"
    if a.alone:
        return ", alone"
    if a.reference not in a.winners:
        return ""
    return ", the reference" + (f"; next {a.ahead:.3g}× {a.question.more}" if a.ahead else "")


def _kin(a: Answer) -> str:
    if a.kin_ratio is None:
        return ", the reference" if a.kin == a.reference else ""
    return f", {_factor(a, a.kin_ratio)}"


def _factor(a: Answer, ratio: float) -> str:
    return f"{max(ratio, 1 / ratio):.3g}× {a.question.less if ratio >= 1 else a.question.more}"


def _titles(cells: pd.DataFrame) -> list[str]:
    return [setting(row, MATRIX) for row in cells[list(MATRIX)].to_dict("records")]


def _matrix(title: str, cells: pd.DataFrame, context: Context) -> Matrix:
    """Columns: first the usual workload at each length, then those that differ in more than the length."""
    rest = [name for name in context.facets if name not in MATRIX]
    groups = {str(key): rows for key, rows in cells.groupby("group", sort=False)}
    extras = {key: setting(rows.iloc[0].to_dict(), rest) for key, rows in groups.items()}
    usual = max(dict.fromkeys(extras.values()), key=list(extras.values()).count)
    places = {key: [_sortable(rows.iloc[0][name]) for name in rest] for key, rows in groups.items()}
    order = sorted(groups, key=lambda key: (extras[key] != usual, places[key], _length(groups[key])))
    names = [_column(_length(groups[key]), extras[key], usual) for key in order]
    rows = tuple(tuple(answer(question, groups[key]) for key in order) for question in QUESTIONS)
    return Matrix(" · ".join(filter(None, (title, usual))), tuple(names), rows)


def _sortable(value: Any) -> tuple[float, str]:
    """Numbers by size, then words: a stranger's file may mix them."""
    return (float(value), "") if isinstance(value, int | float) else (math.inf, str(value))


def _length(rows: pd.DataFrame) -> int:
    return int(rows.iloc[0]["length"] or 0)


def _column(length: int, extra: str, usual: str) -> str:
    name = f"n {length:,}" if length else "no length"
    return name if extra == usual else f"{name} · {extra}"


def _tally(number: int, matrices: list[Matrix]) -> tuple[Any, ...]:
    answers = [a for matrix in matrices for a in matrix.rows[number]]
    ties = sum(len(a.winners) > 1 for a in answers)
    asked = sum(bool(a.winners) for a in answers)
    why = next((a.why for a in answers if a.why), "")
    return QUESTIONS[number].title, why, tally(answers), ties, asked


def _words(context: Context) -> str:
    first: Mapping[Any, Any] = context.cells.iloc[0].to_dict()
    fixed = [name for name in ("batch", "heads", "head_dim", "device", "threads") if name not in context.facets]
    return "n is the sequence length; " + (f"all with {setting(first, fixed)}" if fixed else "its axes are in the name")


def _references(cells: pd.DataFrame) -> str:
    names = sorted({str(name) for name in cells["reference"].dropna()})
    return f"The reference is {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}." if names else ""


SECTION = Section("Who wins", 10, _render)
