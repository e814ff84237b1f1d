"""What a metric is: a name, a unit, a direction, and the phase in which it is read.

Phases: "right" (reads a `Judged`), "memory" (a `Held`), "time" (a `Timed`), "derive" (from the cell and the
other readings) and "own" (an `Asked`, in a child of its own, only when asked for).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from attention_impls.contract import Evidence
from bench.cell import Cell
from bench.device import Held
from bench.protocol import Protocol
from bench.record import MetricInfo, Reading, Scalar

PHASES = ("right", "memory", "time", "derive", "own")


@dataclass(frozen=True)
class Sample:
    """One timed block: seconds a call, how many calls, which round and child, minor faults a call, when."""

    seconds: float
    inner: int
    round: int
    process: int
    faults: float
    at: float


@dataclass(frozen=True)
class Timed:
    """What the time phase saw of one contender."""

    samples: Sequence[Sample]
    prepare_s: float


@dataclass(frozen=True)
class Taken:
    """What the memory phase saw of one contender; `kept` are bytes that outlive a step, by what they are."""

    held: Held
    evidence: Evidence
    differentiates: bool
    kept: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """What an opt-in metric is asked about: one cell, and how things are measured."""

    cell: Cell
    protocol: Protocol


class Found(NamedTuple):
    """What an opt-in metric read, and facts about how."""

    reading: Reading
    facts: Mapping[str, Scalar] = MappingProxyType({})


@dataclass(frozen=True)
class Metric:
    """One number worth recording. `read` takes what its phase saw; `derive` the cell and its readings; `ask`
    measures by itself, in a child of its own."""

    name: str
    unit: str
    better: str
    noise: str
    label: str
    phase: str
    read: Callable[[Any], Reading | None] | None = None  # None: it means nothing for this cell
    derive: Callable[[Mapping[str, Scalar], Mapping[str, Reading]], Reading | None] | None = None
    ask: Callable[[Asked], Found] | None = None  # of an opt-in one
    budget: Callable[[Any], float | None] | None = None  # what a reading of noise "budget" is held against
    optional: bool = False
    longest_only: bool = False  # of an opt-in one: asked at the longest length of a contender alone
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def info(self) -> MetricInfo:
        """What the reading side needs to know."""
        return MetricInfo(self.unit, self.better, self.noise, self.label)


@cache
def all_metrics() -> dict[str, Metric]:
    """Every metric by its name, found by walking bench/metrics. Raises TypeError naming a file without METRICS."""
    import bench.metrics as package

    found: dict[str, Metric] = {}
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        metrics = getattr(importlib.import_module(info.name), "METRICS", None)
        if not isinstance(metrics, tuple) or not all(isinstance(m, Metric) for m in metrics):
            raise TypeError(f"{info.name.replace('.', '/')}.py: expected METRICS, a tuple of Metric")
        found.update((m.name, m) for m in metrics)
    return found


def of_phase(phase: str) -> list[Metric]:
    """The metrics read in one phase, opt-in ones left out (they have a phase of their own)."""
    return [m for m in all_metrics().values() if m.phase == phase]


def missing(unit: str, why: str) -> Reading:
    """A reading that is not there, with the reason."""
    return Reading(unit=unit, why_missing=why)
