"""Runs a plan: a group at a time, each in child processes, every cell ending as a record.

Right and memory in one child, time in another. A contender that crashes, hangs, exits or eats all memory
costs its own cell: outcome, error and memory of the others stand, and their time is measured again without
it, because rounds of two processes are never mixed in one ratio. Only the writer given here touches the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.cell import to_data
from bench.child import HERE, Death, Place, start
from bench.metric import all_metrics
from bench.plan import Group, Plan
from bench.protocol import Protocol
from bench.record import MEASURED, Reading, Record
from bench.sanity import Earlier
from bench.state import State, record_of, take

# glibc moves its mmap and trim thresholds while a process runs, which alone changes a cell by 2x: a timing
# child never maps or gives back. The same policy as the CUDA caching allocator's, said in the protocol.
PINNED_HEAP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(64 * 2**20)}
FACTS = ("ceiling_flops", "ceiling_bandwidth", "data_sheet_flops")
SPARE_MEMORY = 0.8  # share of the free memory that a child may take when no limit is given
FIRST_PHASES = ("import", "prepare", "warm", "right")  # compile and lazy loading happen in these


@dataclass(frozen=True)
class Progress:
    """Where a run stands: told to the listener before each phase of each group."""

    group: int
    groups: int
    setting: str
    phase: str
    cell: str = ""


Listener = Callable[[Progress], None]


def run(
    plan: Plan,
    protocol: Protocol,
    *,
    listener: Listener = lambda _: None,
    plugins: Sequence[Path] = (),
    extra: Sequence[str] = (),
    earlier: Earlier | None = None,
    whole: Plan | None = None,
) -> Iterator[list[Record]]:
    """The records of a plan, group by group. `extra` names opt-in metrics; `earlier` is what other groups of the same
    run have shown; `whole` is the plan that this one is the rest of."""
    protocol, earlier, farthest = limited(protocol), earlier or Earlier(), (whole or plan).farthest()
    job = {"protocol": asdict(protocol), "plugins": [str(path.resolve()) for path in plugins]}
    for number, group in enumerate(plan.groups):

        def tell(phase: str, cell: str = "", number: int = number, group: Group = group) -> None:
            listener(Progress(number, len(plan.groups), group.setting, phase, cell))

        yield _group(group, protocol, job, tell, extra, earlier, farthest)


def _group(
    group: Group,
    protocol: Protocol,
    job: Mapping[str, Any],
    tell: Callable[..., None],
    extra: Sequence[str],
    earlier: Earlier,
    farthest: frozenset[str],
) -> list[Record]:
    states = [State(p, outcome=p.outcome, note=p.note) for p in group.cells]
    _right(states, protocol, job, tell)
    _time_under_ceilings(states, group.reference, protocol, job, tell, earlier)
    for name in extra:
        _own(states, name, protocol, job, tell, farthest if all_metrics()[name].longest_only else None)
    return [record_of(state, group.reference, protocol, earlier) for state in states]


def limited(protocol: Protocol) -> Protocol:
    """The protocol with a memory limit: its own, else most of what is free."""
    return replace(protocol, memory_limit=protocol.memory_limit or int(SPARE_MEMORY * available_memory()))


def judge(
    group: Group,
    protocol: Protocol,
    *,
    place: Place = HERE,
    plugins: Sequence[str] = (),
) -> list[Record]:
    """The records of a group without times: right and memory only, in children that run at `place`."""
    protocol = limited(protocol)
    states = [State(p, outcome=p.outcome, note=p.note) for p in group.cells]
    job = {"protocol": asdict(protocol), "plugins": list(plugins)}
    _right(states, protocol, job, lambda *_: None, place=place)
    return [record_of(state, group.reference, protocol, Earlier()) for state in states]


def _right(
    states: list[State],
    protocol: Protocol,
    job: Mapping[str, Any],
    tell: Callable[..., None],
    *,
    place: Place = HERE,
) -> None:
    """Right and memory; after a death the child is started again with the cells it had not begun."""
    waiting = [i for i, s in enumerate(states) if not s.outcome]
    while waiting:
        tell("right", states[waiting[0]].planned.cell.subject)
        at, death = _listen(states, "right", waiting, protocol, job, tell, place=place)
        if death is None:
            return
        _blame(states, at if at is not None else waiting[0], death)
        waiting = [i for i in waiting if i > (at if at is not None else waiting[0])]


def _time_under_ceilings(
    states: list[State],
    reference: str,
    protocol: Protocol,
    job: Mapping[str, Any],
    tell: Callable[..., None],
    earlier: Earlier,
) -> None:
    """Time, and what the device can do at most: measured once a run for each device, dtype and number of threads."""
    cell = states[0].planned.cell
    under = (cell.device, cell.workload.dtype, cell.threads)
    known = earlier.ceilings.get(under)
    _time(states, reference, protocol, {**job, "ceilings": known is None}, tell)
    for state in states:
        if known is not None and state.alive:
            state.facts |= known
        elif found := {name: state.facts[name] for name in FACTS if name in state.facts}:
            earlier.ceilings[under] = found


def _time(
    states: list[State], reference: str, protocol: Protocol, job: Mapping[str, Any], tell: Callable[..., None]
) -> None:
    """Time of all that are right; begun again from nothing, without the culprit, when one fails."""
    while waiting := [i for i, s in enumerate(states) if s.outcome in MEASURED]:
        for state in states:
            state.samples.clear()
        tell("time")
        base = next((i for i in waiting if states[i].planned.cell.subject == reference), None)
        before = [states[i].outcome for i in waiting]
        at, death = _listen(states, "time", waiting, protocol, job, tell, reference=base)
        if death is not None:
            _blame(states, at if at is not None else waiting[0], death)
        elif before == [states[i].outcome for i in waiting]:
            return


def _own(
    states: list[State],
    name: str,
    protocol: Protocol,
    job: Mapping[str, Any],
    tell: Callable[..., None],
    chosen: frozenset[str] | None,
) -> None:
    """Reads an opt-in metric of each cell (of the chosen ones), in a child of its own."""
    metric = all_metrics()[name]
    for index, state in enumerate(states):
        if state.outcome not in MEASURED or (chosen is not None and state.planned.cell.id not in chosen):
            continue
        tell(name, state.planned.cell.subject)
        _, death = _listen(states, "own", [index], protocol, job, tell, metric=name)
        if death is not None:
            state.readings[name] = Reading(metric.unit, why_missing=f"{death.outcome}: {death.note}")


def _listen(
    states: list[State],
    kind: str,
    waiting: Sequence[int],
    protocol: Protocol,
    job: Mapping[str, Any],
    tell: Callable[..., None],
    **more: Any,
) -> tuple[int | None, Death | None]:
    """Runs one child to its end; returns the cell it was at and how it died, if it died."""
    cells = [(i, to_data(states[i].planned.cell)) for i in waiting]
    first = states[waiting[0]].planned.cell
    metric = more.get("metric")
    environment = environment_of(kind, first.threads, protocol, all_metrics()[metric].environment if metric else {})
    job = {**job, "kind": kind, "cells": cells, "reference": more.get("reference"), "metric": metric}
    child = start(job, environment, place=more.get("place", HERE))
    at: int | None = None
    try:
        for event in child.events(lambda event: _deadline(event, protocol)):
            at = event["cell"] if event["cell"] is not None else at
            if event["e"] == "start":
                tell(event["phase"], states[event["cell"]].planned.cell.subject)
            take(states, event)
    except BaseException:
        child.stop()
        raise
    return at, child.death


def _deadline(event: Mapping[str, Any], protocol: Protocol) -> float:
    phase = event.get("phase", "")
    if event["e"] == "ready" or phase.startswith("own") or phase in FIRST_PHASES:
        return protocol.first_call_timeout_s
    return protocol.step_timeout_s


def environment_of(kind: str, threads: int, protocol: Protocol, own: Mapping[str, str]) -> dict[str, str]:
    """What a child of a kind ("right", "time", "own") finds in its environment; `own` is a metric's wish."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    found = dict.fromkeys(names, str(threads)) | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONHASHSEED": "0"}
    if kind == "time" and protocol.heap == "pinned":
        found |= PINNED_HEAP
    return found | dict(own)


def _blame(states: list[State], index: int, death: Death) -> None:
    states[index].outcome, states[index].note = death.outcome, death.note
    states[index].samples.clear()


def available_memory() -> int:
    """Bytes that are free for use, from /proc/meminfo; 0 (no limit) where there is none."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return 0
    lines = path.read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
