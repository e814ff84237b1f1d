"""One cell on its way to a record: what its children's events said of it, put together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attention_impls import catalogue
from attention_impls.contract import QUADRATIC
from bench import sanity
from bench.cell import coordinates
from bench.metric import Sample, Timed, of_phase
from bench.plan import Planned
from bench.protocol import Protocol
from bench.record import MEASURED, Key, Reading, Record, Scalar
from bench.sanity import Earlier


@dataclass
class State:
    """One cell on its way to a record."""

    planned: Planned
    outcome: str = ""
    note: str = ""
    backend: str = ""
    readings: dict[str, Reading] = field(default_factory=dict)
    facts: dict[str, Scalar] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    prepare_s: float = 0.0

    @property
    def alive(self) -> bool:
        """True while nothing has gone wrong with it."""
        return not self.outcome or self.outcome in MEASURED


def take(states: list[State], event: Mapping[str, Any]) -> None:
    """Puts one event where it belongs."""
    index, kind = event["cell"], event["e"]
    if kind in ("ready", "stopped", "ceilings"):
        for state in states:
            if kind == "ceilings" and state.alive:
                state.facts |= event["facts"]
            if kind == "ready" and state.alive:
                state.facts |= {name: event["facts"][name] for name in ("clock", "caches") if name in event["facts"]}
            if kind == "stopped" and state.samples:
                state.facts |= {
                    "stop_reason": event["reason"],
                    "rounds": event["rounds"],
                    "precision_within_process": _finite(event["precision"]),
                }
        return
    state = states[index]
    if kind == "sample":
        seconds, inner, number, faults, at = event["v"]
        state.samples.append(Sample(seconds, inner, number, 0, faults, at))
    elif kind == "prepared":
        state.prepare_s = event["s"]
    elif kind in ("right", "memory", "own"):
        state.readings |= {name: _reading(data) for name, data in event["readings"].items()}
        state.facts |= event.get("facts", {})
        state.backend = event.get("backend", state.backend)
    if event.get("outcome"):
        state.outcome, state.note = event["outcome"], event["note"]


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _reading(data: Mapping[str, Any]) -> Reading:
    columns = {name: tuple(data[name]) for name in ("values", "round", "process", "inner", "at")}
    return Reading(unit=data["unit"], why_missing=data["why_missing"], **columns)


def record_of(state: State, reference: str, protocol: Protocol, earlier: Earlier) -> Record:
    """The record of a cell that is done, derived metrics and alarms included, those in view of earlier cells too."""
    cell = state.planned.cell
    where = coordinates(cell, reference)
    readings = dict(state.readings)
    if state.outcome in MEASURED:
        timed = Timed(state.samples, state.prepare_s)
        readings |= {m.name: found for m in of_phase("time") if m.read and (found := m.read(timed)) is not None}
        _derive(where, readings)
    return Record(
        key=Key(cell.id, protocol.digest()),
        cell=where,
        outcome=state.outcome or "crashed",
        readings=readings,
        backend=state.backend,
        note=state.note,
        facts=state.facts,
        alarms=_alarms(state, where, readings, earlier) if state.outcome in MEASURED else (),
        companion=state.planned.companion,
        at=time.time(),
    )


def _alarms(
    state: State, where: Mapping[str, Scalar], readings: Mapping[str, Reading], earlier: Earlier
) -> tuple[str, ...]:
    growth = catalogue.find(state.planned.cell.subject).bare.growth or QUADRATIC
    alone = sanity.alarms(readings, state.facts, every_pair=growth.time >= QUADRATIC.time)
    return alone + earlier.stalls(where, readings)


def _derive(cell: Mapping[str, Scalar], readings: dict[str, Reading]) -> None:
    """Derived metrics, until none that waits for another comes anew."""
    waiting = [m for m in of_phase("derive") if m.derive]
    while waiting:
        made = {m.name: found for m in waiting if m.derive and (found := m.derive(cell, readings))}
        if not made:
            return
        readings |= made
        waiting = [m for m in waiting if m.name not in made]
