"""One part of the page, and how the parts are found: every module in `sections/` holds one SECTION."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from bench.errors import CannotDo
from bench.report import sections
from bench.report.context import Context


@dataclass(frozen=True)
class Section:
    """`render(context)` gives the part's HTML below its heading, or empty Markup to leave the part out.

    Plain text instead of Markup is escaped. Parts stand by `order`, then by title.
    """

    title: str
    order: int
    render: Callable[[Context], Markup]


def discover() -> list[Section]:
    """Every SECTION of the folder in the order of the page. Raises CannotDo for a file without one."""
    found = []
    for module in pkgutil.iter_modules(sections.__path__):
        name = f"{sections.__name__}.{module.name}"
        noun = getattr(importlib.import_module(name), "SECTION", None)
        if not isinstance(noun, Section):
            raise CannotDo(f"{name} holds no SECTION; a file there ends with SECTION = Section(title, order, render)")
        found.append(noun)
    return sorted(found, key=lambda section: (section.order, section.title))
