"""What each way to spend less memory saves, and at which price: cells held against the same one without it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.report.context import Context


@dataclass(frozen=True)
class Ratio:
    """One length: bytes, time and error over those of the cell it is held against; None where there is no number."""

    length: int
    bytes: float | None
    time: float | None
    error: float | None


@dataclass(frozen=True)
class Longest:
    """The longest sequence within so many bytes: measured to its neighbour, or predicted."""

    n: float
    verified: bool
    why: str


@dataclass(frozen=True)
class Saving:
    """One contender of one setting over the lengths; pays: the first length from which on it needs fewer bytes."""

    subject: str
    against: str
    ratios: tuple[Ratio, ...]
    pays: int | None
    longest: Longest | None


@dataclass(frozen=True)
class Savings:
    """One setting (all but the length): its lengths, the limit of the search in bytes, and its contenders."""

    setting: str
    lengths: tuple[int, ...]
    limit: float | None
    rows: tuple[Saving, ...]


def without(subject: str) -> str:
    """A subject's name without its transforms; its layer stays."""
    head, *steps = subject.split("+")
    return "+".join([head, *(step for step in steps if step.startswith("in:"))])


def savings(context: Context) -> list[Savings]:
    """Every setting in which something is measured with a transform, or the longest sequence was searched."""
    rows = [row for row in context.cells.to_dict("records") if row["measured"] and row["length"]]
    found: dict[str, list[Mapping[Any, Any]]] = {}
    for row in rows:
        layer = f" · {row['layer']}" if row["layer"] else ""
        found.setdefault(f"{row['setting']}{layer}", []).append(row)
    made = (_savings(setting, each) for setting, each in found.items())
    return [one for one in made if any(r.subject != without(r.subject) or r.longest for r in one.rows)]


def _savings(setting: str, rows: Sequence[Mapping[Any, Any]]) -> Savings:
    by_name: dict[str, dict[int, Mapping[Any, Any]]] = {}
    for row in rows:
        by_name.setdefault(str(row["subject"]), {})[int(row["length"])] = row
    limits = [row["facts"]["longest.limit"] for row in rows if "longest.limit" in row["facts"]]
    lengths = tuple(sorted({int(row["length"]) for row in rows}))
    return Savings(setting, lengths, limits[0] if limits else None,
                   tuple(_saving(name, by_name) for name in by_name))  # fmt: skip


def _saving(name: str, by_name: Mapping[str, Mapping[int, Mapping[Any, Any]]]) -> Saving:
    own = by_name[name]
    bare, reference = without(name), str(next(iter(own.values()))["reference"])
    against = bare if bare != name and bare in by_name else reference if reference in by_name else name
    ratios = tuple(_ratio(length, own[length], by_name[against].get(length)) for length in sorted(own))
    return Saving(name, against, ratios, _pays(ratios), _longest(own))


def _ratio(length: int, row: Mapping[Any, Any], other: Mapping[Any, Any] | None) -> Ratio:
    def over(metric: str) -> float | None:
        mine, theirs = row.get(f"m:{metric}"), None if other is None else other.get(f"m:{metric}")
        known = all(isinstance(x, int | float) and math.isfinite(x) for x in (mine, theirs))
        return mine / theirs if known and theirs else None

    return Ratio(length, over("peak"), over("latency"), over("error_out"))


def _pays(ratios: Sequence[Ratio]) -> int | None:
    """The first length from which on every one needs fewer bytes."""
    first = None
    for ratio in reversed(ratios):
        if ratio.bytes is None or ratio.bytes >= 1:
            break
        first = ratio.length
    return first


def _longest(own: Mapping[int, Mapping[Any, Any]]) -> Longest | None:
    for length in sorted(own, reverse=True):
        row = own[length]
        n = row.get("m:longest")
        if isinstance(n, int | float) and math.isfinite(n):
            facts = row["facts"]
            return Longest(n, facts.get("longest.verified") is True, str(facts.get("longest.why", "")))
    return None
