"""HTML from templates: one jinja environment, autoescape always on, every text cleaned and clipped on its way."""

from __future__ import annotations

import functools
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from bench.report.strangers import LONG, SHORT, TEXT, clean
from bench.units import percent, show


def render(template: str, **values: Any) -> Markup:
    """A template's text with values filled in; whatever is not Markup already is escaped."""
    return Markup(_environment().from_string(template).render(**values))  # noqa: S704 - rendered with autoescape


def page(**values: Any) -> str:
    """The whole page of a run."""
    return document("page.html", **values)


def document(template: str, **values: Any) -> str:
    """A whole page from one of this package's templates."""
    return _environment().get_template(template).render(**values)


def part(name: str) -> Markup:
    """A file of this package that goes into the page as it is: the style and the script."""
    source, _, _ = PackageLoader("bench", "report").get_source(_environment(), name)
    return Markup(source)  # noqa: S704 - our own file


def name(text: object) -> Markup:
    """A name that may break after each of . + : / where the column is narrow."""
    return Markup(re.sub(r"([.+:/])(?=\w)", r"\1<wbr>", str(escape(clean(str(text), SHORT)))))  # noqa: S704


def slug(text: object) -> str:
    """A word for an id attribute of the page, made of letters, digits and hyphens only."""
    return re.sub(r"[^a-z0-9]+", "-", str(text).lower())[:60].strip("-") or "x"


def times(ratio: float | None) -> str:
    """A ratio as "×2.31"; a dash where there is none."""
    return "–" if ratio is None else f"×{ratio:.3g}" if ratio < 1000 else f"×{ratio:,.0f}"


def _long(text: object) -> Markup:
    return escape(clean(str(text), TEXT))


def _finalize(value: Any) -> Any:
    return clean(value, LONG) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("bench", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(show=show, percent=percent, name=name, long=_long, slug=slug, times=times)
    return environment
