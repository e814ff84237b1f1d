"""One `attnbench run`: a plan measured from end to end, stored as it goes, resumed where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import budget, console, supervisor
from bench.child import require_platform
from bench.errors import CannotDo, UserError, unknown
from bench.header import make_header
from bench.lock import device_lock
from bench.metric import all_metrics
from bench.options import load_plugins, planned
from bench.plan import Plan, build, without
from bench.protocol import Protocol
from bench.record import RunHeader
from bench.spec import Spec
from bench.store import Run, Writer, find, read_run, results_folder

# What must be the same for a run to go on: else its records would not be of one run.
_SAME: Mapping[str, Callable[[RunHeader], Any]] = {
    "protocol": lambda h: h.protocol_digest,
    "commit": lambda h: h.commit,
    "uncommitted changes": lambda h: h.dirty,
    "environment": lambda h: h.environment_digest,
    "machine": lambda h: h.machine.get("id"),
}

_PHASES = {"memory": "right", "prepare": "time", "warm": "time", "check": "time"}  # as a person follows them


@dataclass(frozen=True)
class Session:
    """Everything a run needs before the first child starts."""

    plan: Plan
    protocol: Protocol
    header: RunHeader
    plugins: tuple[Path, ...]
    extra: tuple[str, ...]
    resumed: Run | None = None


def measure_run(chosen: Mapping[str, Any]) -> Run:
    """Measures what the options of `attnbench run` describe; returns the stored run.

    Raises UserError for options that make no sense, CannotDo where the machine is taken, nothing can be
    written, or a run cannot be resumed.
    """
    require_platform()
    results = results_folder(chosen["results"])
    session = _resumed(chosen, results) if chosen["resume"] else _fresh(chosen)
    with ExitStack() as held:
        for device in sorted({p.cell.device for p in session.plan.cells if not p.outcome}):
            held.enter_context(device_lock(device, wait=chosen["wait"], told=console.err))
        if session.resumed is None:
            writer = held.enter_context(Writer.create(results, session.header))
        else:
            writer = held.enter_context(Writer.resume(session.resumed.path))
        _measure(session, writer)
        return read_run(writer.path)


def _measure(session: Session, writer: Writer) -> None:
    done = {r.key.cell for r in session.resumed.records} if session.resumed else set()
    rest = without(session.plan, done)
    progress = console.progress()
    progress.start(len(session.plan.groups))
    tell = _listener(progress, session, len(session.plan.groups) - len(rest.groups))
    try:
        for records in supervisor.run(
            rest, session.protocol, listener=tell, plugins=session.plugins, extra=session.extra, whole=session.plan
        ):
            writer.append(records)
        writer.finish(time.time())
    except KeyboardInterrupt:
        progress.note(f"interrupted; what is measured is kept in {writer.path}; go on with: attnbench run --resume "
                      f"{session.header.run}")  # fmt: skip
        raise
    finally:
        progress.stop()


def _listener(progress: console.Progress, session: Session, before: int) -> supervisor.Listener:
    """Tells where a run stands; what is left is the estimate, scaled by how right it has been so far."""
    farthest = session.plan.farthest()
    guesses = [budget.estimate(group, session.protocol, farthest).seconds for group in session.plan.groups]
    start, told = time.monotonic(), ("", "")

    def tell(at: supervisor.Progress) -> None:
        nonlocal told
        phase = _PHASES.get(at.phase, at.phase)
        if told == (at.setting, phase):
            return
        told = (at.setting, phase)
        number = before + at.group
        spent, guessed = time.monotonic() - start, sum(guesses[before:number])
        scale = spent / guessed if guessed > 0 else 1.0
        label = f"{at.setting}, {phase}"
        progress.advance(label, number, len(guesses), scale * sum(guesses[number:]))

    return tell


def _fresh(chosen: Mapping[str, Any]) -> Session:
    plan, protocol = planned(chosen)
    protocol = _limits(chosen, protocol)
    plugins = tuple(path.resolve() for path in chosen["plugins"])
    header = make_header(plan, protocol)
    extra = tuple(dict.fromkeys((*chosen["extra"], *(("longest",) if protocol.max_memory else ()))))
    stored = {**header.plan, "plugins": [str(path) for path in plugins], "extra": list(extra)}
    return Session(plan, protocol, replace(header, plan=stored), plugins, _known(extra))


def _limits(chosen: Mapping[str, Any], protocol: Protocol) -> Protocol:
    if chosen["timeout"] is not None:
        if chosen["timeout"] <= 0:
            raise UserError(f"--timeout must be more than 0 seconds; got {chosen['timeout']}")
        first = max(chosen["timeout"], protocol.first_call_timeout_s)
        protocol = replace(protocol, step_timeout_s=chosen["timeout"], first_call_timeout_s=first)
    return protocol if chosen["clock"] is None else replace(protocol, clock=chosen["clock"])


def _known(extra: tuple[str, ...]) -> tuple[str, ...]:
    optional = [m.name for m in all_metrics().values() if m.optional]
    for name in extra:
        if name not in optional:
            raise unknown("opt-in metric", name, optional)
    return tuple(extra)


def _resumed(chosen: Mapping[str, Any], results: Path) -> Session:
    """The plan, protocol and plugins of an interrupted run, from its header. Raises CannotDo naming what differs."""
    run = read_run(find(results, chosen["resume"]))
    if run.finished:
        raise CannotDo(f"run {run.header.run} is finished; there is nothing to resume")
    old = run.header
    plugins = tuple(Path(str(path)) for path in old.plan.get("plugins", ()))
    load_plugins(plugins)
    companions = set(old.plan.get("companions", ()))
    cells = tuple(cell for cell in old.plan["cells"] if cell not in companions)
    spec = Spec(name=str(old.plan["suite"]), sweeps=(), reference=tuple(old.plan["reference"]), cells=cells)
    from bench.devices import absent

    plan = replace(build(spec, absent_devices=absent()), left_out=old.left_out)
    protocol = Protocol(**dict(old.protocol))  # type: ignore[arg-type]  # written from one; its digest is checked below
    now = make_header(plan, protocol)
    for what, of in _SAME.items():
        if of(now) != of(old):
            raise CannotDo(
                f"run {old.run} cannot go on: its {what} was {of(old) or 'none'}, now it is {of(now) or 'none'}"
            )
    return Session(plan, protocol, old, plugins, _known(tuple(old.plan.get("extra", ()))), run)
