"""From a spec to groups of cells: pure, needs no device.

A group is everything that is measured on the same inputs: one workload, direction, device and thread
count, a named reference and every contender. A contender that cannot do the workload stays in the plan
with its sentence, so that it ends as a record; a row never disappears.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attention_impls import catalogue, names
from attention_impls.contract import Workload
from bench.cell import Cell, parse_id
from bench.errors import UserError
from bench.select import chooser
from bench.spec import AXES, Spec, Sweep
from bench.step import refuses


@dataclass(frozen=True)
class Planned:
    """A cell of the plan; `outcome` and `note` are set where it will not be run ("unsupported", "absent")."""

    cell: Cell
    outcome: str = ""
    note: str = ""
    companion: bool = False


@dataclass(frozen=True)
class Group:
    """Contenders on the same inputs. `reference` is a subject's name, "" when no listed one can do the workload."""

    setting: str
    reference: str
    cells: tuple[Planned, ...]

    @property
    def measured(self) -> tuple[Planned, ...]:
        """The cells that will be run."""
        return tuple(planned for planned in self.cells if not planned.outcome)


@dataclass(frozen=True)
class Plan:
    """What will be measured, in order, and what the suite asked for that has no cell at all."""

    suite: str
    reference: tuple[str, ...]
    groups: tuple[Group, ...]
    left_out: tuple[Mapping[str, str], ...] = field(default=())

    @property
    def cells(self) -> tuple[Planned, ...]:
        """Every planned cell, group by group."""
        return tuple(planned for group in self.groups for planned in group.cells)

    def farthest(self) -> frozenset[str]:
        """Ids of the cells at the longest length of their contender, all else being equal."""
        found: dict[Cell, Cell] = {}
        for cell in (p.cell for p in self.cells if not p.outcome):
            same = replace(cell, workload=replace(cell.workload, q_len=1, kv_len=1))
            if same not in found or cell.workload.q_len > found[same].workload.q_len:
                found[same] = cell
        return frozenset(cell.id for cell in found.values())


def build(spec: Spec, *, default_device: str = "cpu", absent_devices: Mapping[str, str] | None = None) -> Plan:
    """The plan of a spec.

    default_device is what "auto" means; absent_devices maps devices that are not here to a sentence.
    Raises UserError for unknown names and for a plan with nothing left to measure.
    """
    gathered: dict[str, list[Cell]] = {}
    left_out: list[dict[str, str]] = []
    wanted = [parse_id(text) for text in spec.cells] or list(_crossing(spec.sweeps, default_device, left_out))
    for cell in wanted:
        cell = replace(cell, subject=_canonical(cell.subject))
        found = gathered.setdefault(cell.setting, [])
        if cell not in found:
            found.append(cell)
    choose = chooser(spec.keep) if spec.keep else lambda _: True
    groups = [_group(cells, spec.reference, choose, absent_devices or {}) for cells in gathered.values()]
    plan = Plan(spec.name, spec.reference, tuple(g for g in groups if g is not None), tuple(left_out))
    _require_something(plan, spec)
    return plan


def without(plan: Plan, done: Iterable[str]) -> Plan:
    """The plan without groups all of whose cells are in `done` (ids): what a resumed run still has to do."""
    ids = set(done)
    rest = (g for g in plan.groups if any(p.cell.id not in ids for p in g.cells))
    return replace(plan, groups=tuple(rest))


def _require_something(plan: Plan, spec: Spec) -> None:
    if any(group.measured for group in plan.groups):
        return
    if not plan.groups:
        why = f"-k {spec.keep!r} keeps no cell" if spec.keep else "; ".join(x["why"] for x in plan.left_out[:3])
        raise UserError(f"nothing left to measure in suite {spec.name}: {why or 'it has no sweeps'}")
    reasons = dict.fromkeys(f"{p.cell.subject}: {p.note}" for p in plan.cells if p.outcome)
    raise UserError(f"nothing in suite {spec.name} can be measured: " + "; ".join(list(reasons)[:4]))


def _canonical(subject: str) -> str:
    try:
        return str(catalogue.find(subject).name)
    except (catalogue.UnknownNameError, ValueError) as error:  # BadNameError is a ValueError
        raise UserError(str(error)) from None


def _crossing(sweeps: Sequence[Sweep], device: str, left_out: list[dict[str, str]]) -> Iterator[Cell]:
    for sweep in sweeps:
        subjects = [name for pattern in sweep.subjects for name in _subjects(pattern)]
        for values in itertools.product(*(sweep.axes[axis] for axis in AXES)):
            point = dict(zip(AXES, values, strict=True))
            try:
                workload = _workload(point)
            except ValueError as error:
                left_out.append({"what": _point_text(point), "why": str(error)})
                continue
            place = device if point["device"] == "auto" else point["device"]
            threads = point["threads"] if place == "cpu" else 1
            yield from (Cell(s, workload, point["direction"], place, threads) for s in subjects)


def _subjects(pattern: str) -> list[str]:
    """A name; or `variant.*` for every implementation of a variant, `*` for every one there is."""
    if pattern == "*":
        return catalogue.implementations()
    if pattern.endswith(".*"):
        try:
            return catalogue.implementations(pattern.removesuffix(".*"))
        except catalogue.UnknownNameError as error:
            raise UserError(str(error)) from None
    return [pattern]


def _workload(point: Mapping[str, Any]) -> Workload:
    return Workload(
        batch=point["batch"],
        heads=point["heads"],
        kv_heads=point["kv_heads"] or point["heads"],
        q_len=point["q_len"],
        kv_len=point["kv_len"] or point["q_len"],
        head_dim=point["head_dim"],
        value_dim=point["value_dim"] or point["head_dim"],
        dtype=point["dtype"],
        mask=point["mask"],
        inputs=point["inputs"],
    )


def _point_text(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in point.items() if value is not None)


def _group(
    cells: Sequence[Cell], references: Sequence[str], choose: Any, absent_devices: Mapping[str, str]
) -> Group | None:
    chosen = [cell for cell in cells if choose(cell.id)]
    if not chosen:
        return None
    planned = [_planned(cell, absent_devices) for cell in chosen]
    reference = ""
    for name in _preferred(references, cells):
        cell = replace(cells[0], subject=name)
        known = next((p for p in planned if p.cell == cell), None)
        asked = known or replace(_planned(cell, absent_devices), companion=True)
        if not asked.outcome:
            reference = name
            planned = planned if known else [asked, *planned]
            break
    return Group(cells[0].setting, reference, tuple(planned))


def _preferred(references: Sequence[str], cells: Sequence[Cell]) -> list[str]:
    """References that are contenders themselves first: a group of layers is held against a layer.

    Asked of all cells, chosen or not, so that deselecting some never changes what ratios are to.
    """
    contenders = {cell.subject for cell in cells}
    return sorted(map(_canonical, references), key=lambda name: name not in contenders)


def _planned(cell: Cell, absent_devices: Mapping[str, str]) -> Planned:
    subject = catalogue.find(names.parse(cell.subject))
    if cell.device in absent_devices:
        return Planned(cell, "absent", absent_devices[cell.device])
    missing = subject.missing()
    if missing:
        return Planned(cell, "absent", missing)
    try:
        refusal = refuses(subject, cell)
    except ValueError as error:  # a mask that this shape cannot have
        refusal = str(error)
    return Planned(cell, "unsupported", refusal) if refusal else Planned(cell)
