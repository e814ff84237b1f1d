"""From what was typed to two sides and the cells they are measured on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from attention_impls import catalogue, names
from bench.ab.sides import Side, checked_out, elsewhere, here
from bench.errors import CannotDo, UserError
from bench.plan import Group, Plan, Planned
from bench.step import refuses


def sides_and_plan(
    base: str, head: str | None, plan: Plan, chosen: Mapping[str, Any], held: ExitStack
) -> tuple[Side, Side, Plan, bool]:
    """(base, head, plan, whether they are subjects). Worktrees live as long as `held`. Raises UserError, CannotDo."""
    if _is_subject(base):
        if head is None or not _is_subject(head):
            raise UserError(f"{base} is a subject: it is compared with another subject, as in: ab {base} softmax.tiles")
        return here(base, base), here(head, head), _of_subjects(plan, base, head), True
    one = _side(base, chosen["base_env"], chosen, held)
    two = _side(head, chosen["head_env"], chosen, held)
    return one, two, plan, False


def _side(revision: str | None, python: str | None, chosen: Mapping[str, Any], held: ExitStack) -> Side:
    """A commit, a Python, or a commit under a Python; this checkout where neither is named."""
    other = elsewhere(f"{revision or 'working tree'} under {python}", python) if python else None
    if revision is None or revision == ".":
        return other or here()
    side = held.enter_context(checked_out(revision, strict=chosen["strict_driver"]))
    if other is None:
        return side
    return replace(side, label=other.label, place=replace(side.place, python=other.place.python))


def _is_subject(text: str) -> bool:
    try:
        catalogue.find(text)
    except (names.BadNameError, LookupError, ValueError):
        return False
    return True


def _of_subjects(plan: Plan, base: str, head: str) -> Plan:
    """One cell a setting of the plan, named after the base, where both subjects can do it."""
    groups, refused = [], ""
    for group in plan.groups:
        cell = replace(group.cells[0].cell, subject=base)
        both = (replace(cell, subject=name) for name in (base, head))
        why = next((f"{one.subject}: {w}" for one in both if (w := refuses(catalogue.find(one.subject), one))), "")
        if why:
            refused = why
        else:
            groups.append(Group(group.setting, base, (Planned(cell),)))
    if not groups:
        raise CannotDo(f"no setting of the suite can be done by both: {refused}")
    return Plan(plan.suite, (base,), tuple(groups))
