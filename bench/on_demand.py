"""A plan measured a group at a time, when one of its cells is first asked for: what pytest needs, whose order
and choice of cells are its own. The same supervisor, header and store as `attnbench run`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import supervisor
from bench.header import make_header
from bench.lock import device_lock
from bench.plan import Group, Plan
from bench.protocol import Protocol
from bench.record import Record
from bench.sanity import Earlier
from bench.store import Writer
from bench.units import show


@dataclass(frozen=True)
class Limits:
    """How long to go on, where somebody said so. max_time_s is per contender; the group gets their sum."""

    max_time_s: float | None = None
    min_rounds: int | None = None
    precision: float | None = None

    def applied(self, protocol: Protocol, contenders: int) -> Protocol:
        """The protocol of a group of that many contenders; only its limits differ, never its digest."""
        if self.max_time_s is not None:
            protocol = replace(protocol, group_budget_s=self.max_time_s * max(1, contenders))
        if self.min_rounds is not None:
            rounds, most = self.min_rounds, max(self.min_rounds, protocol.max_rounds)
            protocol = replace(protocol, min_rounds=rounds, least_rounds=rounds, max_rounds=most)
        return protocol if self.precision is None else replace(protocol, precision=self.precision)


@dataclass
class OnDemand:
    """A plan whose groups are measured when asked for. Nothing is opened before the first; `close` ends the run."""

    plan: Plan
    protocol: Protocol
    limits: Limits
    results: Path
    plugins: Sequence[Path]
    command: Sequence[str]
    wait: bool
    tell: Callable[[str], None]
    records: dict[str, Record] = field(default_factory=dict)
    run: str = ""
    writer: Writer | None = None
    _earlier: Earlier = field(default_factory=Earlier)
    _held: ExitStack = field(default_factory=ExitStack)

    def record(self, cell: str) -> Record:
        """The record of a cell's id, its whole group measured and stored first where that has not been done.

        Raises CannotDo where another run is measuring or nothing can be written; KeyError for a cell of no group.
        """
        if cell not in self.records:
            number = next((i for i, g in enumerate(self.plan.groups) if cell in _ids(g)), None)
            if number is None:
                raise KeyError(cell)
            self._measure(number)
        return self.records[cell]

    def protocol_of(self, cell: str) -> Protocol:
        """How a cell's group is measured."""
        contenders = next(len(g.measured) for g in self.plan.groups if cell in _ids(g))
        return self.limits.applied(self.protocol, contenders)

    def repeat(self, cell: str) -> str:
        """The command that measures one cell again, alone."""
        return shlex.join(
            ["attnbench", "run", *(w for p in self.plugins for w in ("--plugin", str(p))), "--cell", cell]
        )

    def close(self) -> None:
        """Ends the stored run, which is finished if every group has its records, and gives the devices back."""
        with self._held:
            if self.writer is not None and all(_ids(group) <= self.records.keys() for group in self.plan.groups):
                self.writer.finish(time.time())

    def _measure(self, number: int) -> None:
        writer = self.writer or self._open()
        group = self.plan.groups[number]
        protocol = self.limits.applied(self.protocol, len(group.measured))
        if group.measured:
            many, longest = len(group.measured), show(protocol.group_budget_s, "s")
            where = f"group {number + 1} of {len(self.plan.groups)}, {group.setting}"
            self.tell(f"{where}: {many} contender{'s' * (many > 1)}, timed for at most {longest}")
        alone = replace(self.plan, groups=(group,))
        for records in supervisor.run(alone, protocol, plugins=self.plugins, earlier=self._earlier):
            writer.append(records)
            self.records.update((record.key.cell, record) for record in records)

    def _open(self) -> Writer:
        for device in sorted({p.cell.device for g in self.plan.groups for p in g.measured}):
            self._held.enter_context(device_lock(device, wait=self.wait, told=self.tell, option="--attn-wait"))
        longest = max(len(group.measured) for group in self.plan.groups)
        header = make_header(self.plan, self.limits.applied(self.protocol, longest), self.command)
        plugins = [str(path.resolve()) for path in self.plugins]
        header = replace(header, plan={**header.plan, "plugins": plugins, "extra": []})  # what --resume asks for
        self.writer = self._held.enter_context(Writer.create(self.results, header))
        self.run = header.run
        return self.writer


def narrowed(plan: Plan, chosen: Collection[str]) -> Plan:
    """The plan with only the chosen cells (ids), each group's reference beside them as a companion."""
    groups = (_narrowed(group, chosen) for group in plan.groups)
    return replace(plan, groups=tuple(group for group in groups if group is not None))


def _narrowed(group: Group, chosen: Collection[str]) -> Group | None:
    own = [p for p in group.cells if p.cell.id in chosen]
    if not own:
        return None
    if all(p.outcome for p in own):  # nothing will be held against a reference
        return replace(group, cells=tuple(own))
    cells = (
        p if p in own else replace(p, companion=True)
        for p in group.cells
        if p in own or p.cell.subject == group.reference
    )
    return replace(group, cells=tuple(cells))


def _ids(group: Group) -> set[str]:
    return {planned.cell.id for planned in group.cells}
