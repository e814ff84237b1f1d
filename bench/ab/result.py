"""What a comparison found, as data: stored, printed, explained, and turned into a pull request's comment.

A stored one may come from a stranger's pull request: `from_data` takes nothing that is not of its type and size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from bench.errors import CannotDo

SCHEMA = 1
VERDICTS = ("worse", "broke", "gone", "unclear", "not_comparable", "better", "fixed", "new", "same")  # worst first
FINDINGS = ("worse", "broke", "gone")
MAX_CELLS, MAX_TEXT, MAX_ROUNDS = 20_000, 4_000, 100_000
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}\Z")

Rounds = tuple[tuple[tuple[float, float], ...], ...]
"""By pair, by round: seconds a call of base and head."""


@dataclass(frozen=True)
class SideInfo:
    """One side in words."""

    label: str
    commit: str
    driver: str


@dataclass(frozen=True)
class Row:
    """The verdict on one metric of one cell; for latency with all it rests on, in seconds and ratios."""

    cell: str
    metric: str
    verdict: str
    why: str
    base: float | None = None
    head: float | None = None
    unit: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    q: float | None = None
    limit: float | None = None
    resolution: float | None = None
    inner: int = 0
    screened: Rounds = ()
    confirmed: Rounds = ()


@dataclass(frozen=True)
class Comparison:
    """Everything about one comparison."""

    id: str
    created: str
    machine: str
    base: SideInfo
    head: SideInfo
    protocol: str
    rules: Mapping[str, float]
    seconds: float
    notes: tuple[str, ...] = ()
    rows: tuple[Row, ...] = field(default=())

    @property
    def regressed(self) -> bool:
        """True where something is worse, broke or is gone."""
        return any(row.verdict in FINDINGS for row in self.rows)

    def worst_first(self) -> list[Row]:
        """Rows by verdict, then by how far they moved."""
        return sorted(
            self.rows, key=lambda r: (VERDICTS.index(r.verdict), -abs(math.log(r.ratio or 1.0) or 0.0), r.cell)
        )


def to_data(found: Comparison) -> dict[str, Any]:
    """Plain data, JSON-ready."""
    return {"kind": "ab", "schema": SCHEMA, **asdict(found)}


def from_data(data: Any) -> Comparison:
    """The comparison that `to_data` wrote. Raises CannotDo naming the field that is not as it must be."""
    table = _table(data, "the comparison")
    if table.get("kind") != "ab" or table.get("schema") != SCHEMA:
        raise CannotDo(f"this is no comparison of schema {SCHEMA}; attnbench ab writes them")
    ident = _text(table, "id")
    if not _ID.match(ident):
        raise CannotDo("the comparison's id could not name a file")
    rows = _list(table, "rows", MAX_CELLS * 20)
    return Comparison(
        id=ident,
        created=_text(table, "created"),
        machine=_text(table, "machine"),
        base=_side(table.get("base"), "base"),
        head=_side(table.get("head"), "head"),
        protocol=_text(table, "protocol"),
        rules={str(k)[:40]: _number(v, f"rules.{k}") for k, v in _table(table.get("rules"), "rules").items()},
        seconds=_number(table.get("seconds"), "seconds"),
        notes=tuple(_said(note, "a note") for note in _list(table, "notes", 100)),
        rows=tuple(_row(row) for row in rows),
    )


def _side(data: Any, what: str) -> SideInfo:
    table = _table(data, what)
    return SideInfo(*(_text(table, f.name) for f in fields(SideInfo)))


def _row(data: Any) -> Row:
    table = _table(data, "a row")
    verdict = _text(table, "verdict")
    if verdict not in VERDICTS:
        raise CannotDo(f"a row's verdict {verdict[:20]!r} is none; known: {', '.join(VERDICTS)}")
    return Row(
        cell=_text(table, "cell"),
        metric=_text(table, "metric"),
        verdict=verdict,
        why=_text(table, "why"),
        unit=_text(table, "unit"),
        base=_maybe(table, "base"),
        head=_maybe(table, "head"),
        ratio=_maybe(table, "ratio"),
        low=_maybe(table, "low"),
        high=_maybe(table, "high"),
        q=_maybe(table, "q"),
        limit=_maybe(table, "limit"),
        resolution=_maybe(table, "resolution"),
        inner=int(_number(table.get("inner"), "inner")),
        screened=_rounds(table, "screened"),
        confirmed=_rounds(table, "confirmed"),
    )


def _maybe(table: Mapping[str, Any], name: str) -> float | None:
    return None if table.get(name) is None else _number(table[name], name)


def _rounds(table: Mapping[str, Any], name: str) -> Rounds:
    pairs = _list(table, name, 1000)
    return tuple(tuple(_two(one, name) for one in _list({name: pair}, name, MAX_ROUNDS)) for pair in pairs)


def _two(value: Any, name: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise CannotDo(f"a round of {name} has not two numbers")
    return _number(value[0], name), _number(value[1], name)


def _table(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CannotDo(f"{what} is no table")
    return value


def _list(table: Mapping[str, Any], name: str, most: int) -> Sequence[Any]:
    value = table.get(name)
    if not isinstance(value, list) or len(value) > most:
        raise CannotDo(f"{name} is no list of at most {most}")
    return value


def _text(table: Mapping[str, Any], name: str) -> str:
    return _said(table.get(name), name)


def _said(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise CannotDo(f"{what} is no text of at most {MAX_TEXT} characters")
    return value


def _number(value: Any, what: str) -> float:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2.0**1000:
        raise CannotDo(f"{what} is no number")
    return value
