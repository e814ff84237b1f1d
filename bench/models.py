"""Shapes of well-known models, from `models.toml`: what `--model NAME` sets the axes to. Pure data, no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.errors import unknown

PATH = Path(__file__).parent / "models.toml"
_TEXTS = ("title", "source", "note")


@dataclass(frozen=True)
class Model:
    """One attention layer of a published model: `axes` by the names that suites use, and where they are written."""

    name: str
    title: str
    source: str
    note: str
    axes: Mapping[str, Any]


@cache
def models() -> dict[str, Model]:
    """Every model by its name, in the order of the file. Raises KeyError for one without title, source or note."""
    tables = tomllib.loads(PATH.read_text(encoding="utf-8"))
    return {name: _model(name, table) for name, table in tables.items()}


def model(name: str) -> Model:
    """The model of that name. Raises UserError with the nearest."""
    if name not in models():
        raise unknown("model", name, models())
    return models()[name]


def _model(name: str, table: Mapping[str, Any]) -> Model:
    axes = {axis: value for axis, value in table.items() if axis not in _TEXTS}
    return Model(name, table["title"], table["source"], table["note"], axes)
