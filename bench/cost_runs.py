"""Measures how the cost of implementations grows: one child a variant, whose death costs the one it was at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from attention_impls import catalogue
from attention_impls.contract import Implementation, Workload
from bench.cell import Cell, parse_workload, to_data, workload_text
from bench.child import start
from bench.costs import Cost
from bench.environment import environment, machine
from bench.growth import FIRST, Limits
from bench.protocol import Protocol
from bench.step import refuses
from bench.supervisor import environment_of, limited

# The first that an implementation takes at two lengths: one head where it can do with one, no mask where it needs none.
SETTINGS = tuple(f"b1-h{heads}-n{FIRST}-d64-f32-{mask}" for heads in (1, 4) for mask in ("full", "causal"))
STARTING_S = 60.0  # for a child to import what it measures with

Told = Callable[[str], None]


@dataclass
class _Seen:
    """What was heard of one implementation so far."""

    cell: Cell
    points: list[Mapping[str, Any]] = field(default_factory=list)
    ended: str = ""


def subjects() -> dict[str, Implementation]:
    """Every implementation that runs here on the CPU, by name."""
    found = {f"{name}.{i.name}": i for name, entry in catalogue.entries().items() for i in entry.make()}
    return {name: i for name, i in found.items() if "cpu" in i.support.devices and not i.missing()}


def setting(name: str) -> Workload | None:
    """The workload that an implementation is measured at, its shortest; None where it takes none of SETTINGS."""
    subject = catalogue.find(name)
    for workload in map(parse_workload, SETTINGS):
        sizes = (replace(workload, q_len=n, kv_len=n) for n in (FIRST, 2 * FIRST))
        if not any(refuses(subject, Cell(name, size, "fwd", "cpu", 1)) for size in sizes):
            return workload
    return None


def groups(names: Sequence[str]) -> list[list[str]]:
    """The names by variant, in order: what one child measures."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.partition(".")[0], []).append(name)
    return list(found.values())


def measure(
    names: Sequence[str], limits: Limits, *, plugins: Sequence[str] = (), told: Told = lambda _: None
) -> Iterator[tuple[str, Cost]]:
    """The cost of each implementation, as soon as its child is done with it; `told` hears where it stands."""
    where = {"torch": str(environment()["torch"]), "machine": str(machine()["id"])}
    for group in groups(names):
        cells = [_Seen(Cell(name, w, "fwd", "cpu", 1)) for name in group if (w := setting(name))]
        for seen in _children(cells, limits, plugins, told):
            yield seen.cell.subject, _cost(seen, limits, where)


def _children(waiting: list[_Seen], limits: Limits, plugins: Sequence[str], told: Told) -> Iterator[_Seen]:
    """Each as it ends; after a death the next child begins with those that were not begun."""
    while waiting:
        job = {"kind": "growth", "plugins": list(plugins), "limits": asdict(limits)}
        for seen in _listen(waiting, job, limits, told):
            waiting = waiting[waiting.index(seen) + 1 :]
            yield seen


def _listen(waiting: Sequence[_Seen], job: Mapping[str, Any], limits: Limits, told: Told) -> Iterator[_Seen]:
    """One child to its end; the one that it died at ends with how it died."""
    protocol = limited(Protocol(clock="thread"))  # the work of one thread, whoever else wants its core
    cells = [(i, to_data(seen.cell)) for i, seen in enumerate(waiting)]
    child = start({**job, "protocol": asdict(protocol), "cells": cells}, environment_of("time", 1, protocol, {}))
    at = 0
    try:
        for event in child.events(lambda _: max(limits.whole_s, STARTING_S)):
            at = event["cell"] if event["cell"] is not None else at
            seen = waiting[at]
            if event["e"] == "start" and not seen.points:
                told(seen.cell.subject)
            elif event["e"] == "point":
                seen.points.append(event)
            elif event["e"] in ("ended", "failed"):
                seen.ended = event["note"]
                yield seen
    except BaseException:
        child.stop()
        raise
    if child.death is not None:
        for seen in [s for s in waiting[at:] if not s.ended][:1]:
            seen.ended = f"{child.death.outcome}: {child.death.note}"
            yield seen


def _cost(seen: _Seen, limits: Limits, where: Mapping[str, str]) -> Cost:
    text = workload_text(seen.cell.workload).replace(f"-n{FIRST}", "")
    return Cost(
        workload=text,
        n=tuple(p["n"] for p in seen.points),
        bytes=tuple(p["bytes"] for p in seen.points),
        seconds=tuple(_short(p["seconds"]) for p in seen.points),
        ended=seen.ended,
        max_seconds=limits.seconds,
        max_bytes=limits.bytes,
        **where,
    )


def _short(seconds: float) -> float:
    """Four digits, which is more than is known."""
    return round(seconds, 4 - math.ceil(math.log10(seconds)))
