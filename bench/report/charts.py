"""A metric over an axis as a block of the page: legend, small multiples, and the same as PNG files."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from bench.report import figures
from bench.report.context import Context
from bench.report.markup import render
from bench.report.palette import Look, chapters
from bench.report.panels import Panel, over_heads, over_length, undrawn
from bench.report.svg import THEMED

ON_PAGE = 160  # panels of one metric on the page (about 15 kB each); the PNG files hold them all
_BLOCK = """
<ul class="legend">
{% for name, look in looks.items() %}
<li><span class="sign" style="color:{{ colour(look) }}" aria-hidden="true">{{ look.sign }}</span> {{ name|name }}
{%- if loop.first and reference %} <small>(reference)</small>{% endif %}</li>
{% endfor %}
</ul>
<div class="panels">
{% for title, svg in panels %}
<figure class="panel"><figcaption>{{ title|name }}</figcaption>{{ svg }}</figure>
{% endfor %}
</div>
<p class="files">Also as {% for file in files %}<code>figures/{{ file }}</code>{% if not loop.last %}, {% endif %}
{%- endfor %}{% if left %}; {{ left }} more panels are in these files only{% endif %}.</p>
"""


def charts(context: Context, metric: str, *, guides: bool = False, heads: bool = True, shared: bool = True) -> Markup:
    """Every panel of `metric` over length (and over heads); a sentence where the run has no such number.

    `guides` adds the slopes of n and n²; `shared` gives all panels one value axis, so that they compare by eye.
    """
    info = context.metrics.get(metric)
    if info is None or context.cells[f"m:{metric}"].isna().all():
        return render("<p>{{ why }}</p>", why=_why_none(context, metric))
    blocks = _blocks(context, metric, metric, over_length(context, metric), guides, shared)
    if heads:
        blocks += _blocks(context, f"{metric}-heads", metric, over_heads(context, metric), False, shared)
    note = undrawn(context, metric)
    return blocks + (render("<p class=files>{{ note }}</p>", note=note) if note else Markup())


def _blocks(context: Context, name: str, metric: str, panels: Sequence[Panel], guides: bool, shared: bool) -> Markup:
    """One block per portion of contenders that a picture can hold."""
    portions = chapters(context.cells)
    blocks = []
    for number, looks in enumerate(portions):
        shown = [panel for panel in panels if _worth(panel, looks)]
        if shown:
            stem = name if len(portions) == 1 else f"{name}-{number + 1}"
            blocks.append(_block(context, stem, metric, _plots(context, metric, shown, looks, guides, shared)))
    return Markup().join(blocks)


def _worth(panel: Panel, looks: dict[str, Look]) -> bool:
    """Whether a panel shows anybody of this portion (the reference alone only where nobody else exists)."""
    names = set(panel.points["subject"]) & set(looks)
    return bool(names if len(looks) == 1 else names - {next(iter(looks))}) or names == set(looks)


def _plots(
    context: Context, metric: str, panels: Sequence[Panel], looks: dict[str, Look], guides: bool, shared: bool
) -> list[tuple[Panel, figures.Plot]]:
    """Each panel with its frame: one for all, or each its own."""
    info = context.metrics[metric]
    return [(p, figures.plot(panels if shared else [p], info, looks, guides=guides)) for p in panels]


def _block(context: Context, stem: str, metric: str, plots: Sequence[tuple[Panel, figures.Plot]]) -> Markup:
    looks, label = plots[0][1].looks, context.metrics[metric].label
    drawn = [
        (panel.title, figures.picture(panel, plot, f"{stem}-{i}", f"{label} over {panel.axis}, {panel.title}"))
        for i, (panel, plot) in enumerate(plots[:ON_PAGE])
    ]
    present = {name for panel, _ in plots for name in panel.points["subject"]}
    return render(
        _BLOCK,
        looks={name: look for name, look in looks.items() if name in present},
        colour=lambda look: THEMED.get(look.colour, look.colour),
        reference=next(iter(looks)) in set(context.cells["reference"]),
        panels=drawn,
        files=_sheets(context, stem, label, plots),
        left=len(plots) - len(drawn),
    )


def _sheets(context: Context, stem: str, label: str, plots: Sequence[tuple[Panel, figures.Plot]]) -> list[str]:
    """Write the PNG files, PANELS panels each; their names."""
    files = []
    for start in range(0, len(plots), figures.PANELS):
        part = f"-part{start // figures.PANELS + 1}" if len(plots) > figures.PANELS else ""
        files.append(f"{stem}{part}.png")
        data = figures.sheet(plots[start : start + figures.PANELS], f"{label}, {context.header.run}")
        (context.folder / "figures" / files[-1]).write_bytes(data)
    return files


def _why_none(context: Context, metric: str) -> str:
    column = f"m:{metric}:why"
    reasons = context.cells[column].dropna().unique() if column in context.cells else []
    return f"This run holds no {metric}: {'; '.join(map(str, reasons[:3])) or 'it was not measured'}."
