"""One group, start to finish: right, then memory, then time; the only place where a step is run.

Two children do it: `right_and_memory` in one, `timed` in a fresh one, because the oracle's float64 heap and
the profiler's history would decide the times. Everything goes out through `emit`, an event at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from attention_impls import catalogue
from attention_impls.catalogue import Subject
from attention_impls.contract import Evidence
from attention_impls.evidence import backend_of
from bench.cell import Cell
from bench.device import Device
from bench.devices import all_devices
from bench.metric import Asked, Metric, Sample, Taken, all_metrics, of_phase
from bench.protocol import Protocol
from bench.record import MEASURED, Reading, Scalar
from bench.right import check_again, judge_step
from bench.step import Step, draw, make, prepare
from bench.timing import Contender, rounds, warm_up

Emit = Callable[..., None]
NOTE_LENGTH = 400


def right_and_memory(cells: Sequence[tuple[int, Cell]], protocol: Protocol, emit: Emit) -> None:
    """Judges each cell, then takes the bytes and the operator counts of one step of it.

    Emits `start`, `right` and `memory` events; a cell that raises costs itself only.
    """
    device = all_devices()[cells[0][1].device]
    for index, cell in cells:
        emit("start", index, phase="right")
        subject = catalogue.find(cell.subject)
        done = guarded(device, index, emit, partial(judge_step, subject, cell, protocol))
        if done is None:
            continue
        metrics = of_phase("right")
        readings = _read(metrics, done)
        budgets = {f"budget.{m.name}": held for m in metrics if m.budget and (held := m.budget(done)) is not None}
        emit(
            "right",
            index,
            outcome=done.outcome,
            note=done.note,
            facts={**done.facts, **budgets},
            readings=_readings(readings),
        )
        if done.outcome in MEASURED:
            emit("start", index, phase="memory")
            guarded(device, index, emit, partial(_memory, device, subject, cell, index, emit))


def _memory(device: Device, subject: Subject, cell: Cell, index: int, emit: Emit) -> bool:
    step = make(subject, cell, 1)
    evidence = step.evidence()
    with step.mode():
        held = device.memory(step.phases())
    taken = Taken(held, evidence, step.differentiates, step.kept())
    readings = _read(of_phase("memory"), taken)
    outcome, note, facts = _proof(subject, cell, step, evidence)
    facts.update(held.facts)
    emit(
        "memory",
        index,
        outcome=outcome,
        note=note,
        facts=facts,
        readings=_readings(readings),
        backend=backend_of(evidence),
    )
    return True


def _proof(subject: Subject, cell: Cell, step: Step, seen: Evidence) -> tuple[str, str, dict[str, Scalar]]:
    """Whether every transform really happened and the named back-end really ran."""
    facts: dict[str, Scalar] = {}
    named = subject.bare.backend.get(cell.device)
    compiled = "graphs" in seen.facts
    if named and not compiled and not any(named in op for op in seen.forward):
        return "not_applied", f"the back-end {named} did not run; seen: {backend_of(seen)}", facts
    if not subject.transforms and not subject.layer_transforms:
        return "", "", facts
    bare = catalogue.find(replace(subject.name, transforms=(), layer_transforms=()))
    bare_seen = make(bare, cell, 1).evidence()
    for transform, _ in (*subject.transforms, *subject.layer_transforms):
        if transform.applied is None:
            continue
        applied = transform.applied(seen, bare_seen)
        facts[f"applied.{transform.label}"] = applied.text
        if not applied.ok:
            return "not_applied", f"{transform.label}: {applied.text}", facts
    return "", "", facts


def timed(cells: Sequence[tuple[int, Cell]], reference: int | None, protocol: Protocol, emit: Emit) -> None:
    """Prepares, warms and times every contender in shuffled rounds, then asks each for an answer once more.

    Emits `start`, `prepared`, `sample`, `stopped` and `checked` events. Returns early after the first
    contender that raises: the others are timed again without it, in a process it never touched.
    """
    device = all_devices()[cells[0][1].device]
    contenders: list[Contender] = []
    for index, cell in cells:
        emit("start", index, phase="prepare")
        made = guarded(device, index, emit, partial(contend, device, cell, index, protocol, emit))
        if made is None:
            return
        contenders.append(made)
    modes = contenders[0].step  # one group has one direction, so one gradient mode
    with modes.mode():
        for contender in contenders:
            emit("start", contender.index, phase="warm")
            warm = partial(warm_up, device, contender, protocol, time.monotonic)
            if guarded(device, contender.index, emit, warm) is None:
                return
        stopped = rounds(
            device,
            contenders,
            reference,
            protocol,
            begin=lambda index: emit("start", index, phase="time"),
            take=lambda index, sample: _sample(index, sample, emit),
        )
    emit("stopped", None, **asdict(stopped))
    for contender in contenders:
        emit("start", contender.index, phase="check")
        note = guarded(device, contender.index, emit, partial(check_again, contender.step))
        if note:
            emit("failed", contender.index, outcome="wrong", note=f"after timing: {note}")


def _sample(index: int, sample: Sample, emit: Emit) -> None:
    emit("sample", index, v=[sample.seconds, sample.inner, sample.round, sample.faults, sample.at])


def contend(device: Device, cell: Cell, index: int, protocol: Protocol, emit: Emit) -> Contender:
    """Draws a cell's inputs and prepares it; emits `prepared` with the seconds that took."""
    subject = catalogue.find(cell.subject)
    drawn = draw(subject, cell, protocol.input_sets)
    made: list[Step] = []
    seconds = device.block(lambda: made.append(prepare(subject, cell, drawn)), 1)
    emit("prepared", index, s=seconds)
    return Contender(index, made[0], tuple(made[0].once(which) for which in range(protocol.input_sets)))


def one_step(cell: Cell) -> Callable[[], Any]:
    """One step of a cell, prepared in this process, unmeasured: running it shows no more than that it runs."""
    step = make(catalogue.find(cell.subject), cell, 1)

    def once() -> Any:
        with step.mode():
            return step.once(0)()

    return once


def own(cell: tuple[int, Cell], name: str, protocol: Protocol, emit: Emit) -> None:
    """Reads one opt-in metric of one cell, in the child that was started for it."""
    index, what = cell
    metric = all_metrics()[name]
    device = all_devices()[what.device]
    emit("start", index, phase=f"own {name}")
    if metric.ask is None:
        raise ValueError(f"metric {name} is none that is asked for by itself")
    found = guarded(device, index, emit, partial(metric.ask, Asked(what, protocol)))
    if found is not None:
        emit("own", index, readings=_readings({name: found.reading}), facts=dict(found.facts))


def guarded(device: Device, index: int, emit: Emit, work: Callable[[], Any]) -> Any:
    """What `work` returns; None when it raised, after a `failed` event that says how."""
    try:
        return work()
    except Exception as error:  # the kernel is a stranger: whatever it raises is a result about it
        outcome = "out_of_memory" if device.is_out_of_memory(error) else "raised"
        text = f"{type(error).__name__}: {error}"
        emit("failed", index, outcome=outcome, note=text[:NOTE_LENGTH])
        device.recover()
        return None


def _read(metrics: Iterable[Metric], seen: Any) -> dict[str, Reading]:
    """Each metric's reading of what a phase saw, where it means something there."""
    return {m.name: found for m in metrics if m.read and (found := m.read(seen)) is not None}


def _readings(readings: Mapping[str, Reading]) -> dict[str, Any]:
    return {name: asdict(reading) for name, reading in readings.items()}
