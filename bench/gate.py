"""A gate's own rules, as written: how much a cell's metric may move, and which changes were looked at and taken.

[[threshold]]                  # the first that fits a cell and metric counts
cell = "softmax.naive/*"       # shell patterns over cell ids; default: every cell
metric = "latency"             # and over metrics; default: every metric
may_move = "10%"

[[accept]]
cell = "linear.chunked/*"
metric = "peak_forward"
up_to = "5%"                   # a larger change is a finding again; default: any
why = "holds the chunk's mask since the padding fix"
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bench.compare import FINDINGS, Comparison
from bench.errors import UserError, unknown
from bench.units import fraction

_KEYS = {"threshold": {"cell", "metric", "may_move"}, "accept": {"cell", "metric", "up_to", "why"}}


@dataclass(frozen=True)
class Rule:
    """One table of the file. share: how far it may move, as a fraction. why: of an acceptance, its reason."""

    cell: str
    metric: str
    share: float
    why: str = ""

    def fits(self, cell: str, metric: str) -> bool:
        """True for a cell and metric that both patterns match."""
        return fnmatchcase(cell, self.cell) and fnmatchcase(metric, self.metric)


@dataclass(frozen=True)
class Gate:
    """All rules of a file, in order."""

    thresholds: tuple[Rule, ...] = ()
    accepted: tuple[Rule, ...] = ()

    def share(self, cell: str, metric: str) -> float | None:
        """How far a metric of a cell may move; None where no rule says."""
        return next((rule.share for rule in self.thresholds if rule.fits(cell, metric)), None)

    def judged(self, one: Comparison) -> Comparison:
        """The comparison under these rules: a finding within its threshold is the same, an accepted one accepted.

        Timed metrics got their threshold while they were compared; failing and vanished cells have none.
        """
        if one.verdict not in FINDINGS:
            return one
        share = self.share(one.key.cell, one.metric)
        if one.verdict == "worse" and share is not None and _within(one, share):
            return replace(one, verdict="same", why=f"{one.why}; it may move by {share:.2%}")
        taken = next((r for r in self.accepted if r.fits(one.key.cell, one.metric) and _within(one, r.share)), None)
        return one if taken is None else replace(one, verdict="accepted", why=f"{taken.why} ({one.why})")


def _within(one: Comparison, share: float) -> bool:
    """True where it moved by no more than that, in either direction; a change without a ratio only where any may."""
    if math.isinf(share):
        return True
    return one.ratio is not None and 1 / (1 + share) <= one.ratio <= 1 + share


def load(path: Path) -> Gate:
    """The rules in a file. Raises UserError naming what makes no sense."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML: {error}") from None
    for name in data:
        if name not in _KEYS:
            raise unknown(f"table in {path}", name, _KEYS)
    thresholds = tuple(_rule(path, "threshold", table, "may_move") for table in _tables(path, data, "threshold"))
    accepted = tuple(_rule(path, "accept", table, "up_to") for table in _tables(path, data, "accept"))
    return Gate(thresholds, accepted)


def _tables(path: Path, data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = data.get(name, [])
    if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
        raise UserError(f"{path}: write [[{name}]], with two brackets, before each table")
    return found


def _rule(path: Path, kind: str, table: Mapping[str, Any], share: str) -> Rule:
    for key, value in table.items():
        if key not in _KEYS[kind]:
            raise unknown(f"key in [[{kind}]] of {path}", key, _KEYS[kind])
        if not isinstance(value, str):
            raise UserError(f'{path}: {key} in [[{kind}]] is a text, as in {key} = "10%"')
    if kind == "threshold" and share not in table:
        raise UserError(f'{path}: [[threshold]] needs may_move, as in may_move = "10%"')
    if kind == "accept" and not table.get("why"):
        raise UserError(f"{path}: [[accept]] needs why: people will ask")
    limit = fraction(table[share]) if share in table else math.inf
    return Rule(table.get("cell", "*"), table.get("metric", "*"), limit, table.get("why", ""))
