"""Is it this function, and how precise is it here? One contender against the float64 oracle.

The answer is asked three times: on one input set, on another, and on the second one's values in the first
one's memory; an output computed in prepare, remembered, or keyed by address is wrong on one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attention_impls import judge
from attention_impls.catalogue import Subject
from attention_impls.contract import DTYPES
from attention_impls.judge import Errors
from attention_impls.oracle import Answer
from bench.cell import Cell
from bench.protocol import Protocol
from bench.record import Scalar
from bench.step import Step, make, refuses

LSE_FLOOR = 1e-5  # absolute: flash-attention 3's own tests allow as much
# Relative L2 allowed where numbers are rounded to integers: a tie that falls the other way may move the scale of
# the next layer. A quarter of what int8 itself costs (2e-2), half of what 7 bits instead of 8 would.
COARSE = 5e-3
FRESH_MARGIN = 4  # a second input set may be this much less precise; a remembered output is off by about 1


@dataclass(frozen=True)
class Judged:
    """What came of judging: an outcome ("ok", "imprecise", "wrong"), a sentence, and every distance by name.

    Names are out, lse and d<leaf> (dq, dk, dv, d<parameter>; for a layer dx and d<projection>). `distance` is
    how far the output is from that of what it approximates, or from the unchanged one where a transform
    changes numbers.
    """

    outcome: str
    note: str
    errors: Mapping[str, Errors]
    budgets: Mapping[str, float]
    distance: float | None = None
    facts: Mapping[str, Scalar] = field(default_factory=dict)


def judge_step(subject: Subject, cell: Cell, protocol: Protocol) -> Judged:
    """Judges a subject at a cell. Raises what it raises."""
    step = make(subject, cell, 2, oracle_rows=protocol.oracle_rows)
    judged = _precision(step)
    if judged.outcome == "wrong":
        return judged
    distance = _distance(step)
    note = _function(subject, cell, protocol) or _fresh(step, judged.budgets["out"])
    return replace(judged, outcome="wrong", note=note) if note else replace(judged, distance=distance)


def _precision(step: Step) -> Judged:
    """Distances at the workload's dtype, each against its budget."""
    working = working_dtype(step.subject, step.cell)
    seen, right = step.seen(0), step.expected(0)
    found = step.distances(seen, right)
    yardstick = _rounded(step.expected(0, working), seen, working)
    own = step.distances(yardstick, right)
    continuous, keys = step.subject.variant.continuous, step.cell.workload.kv_len
    budgets = {
        name: _lse_budget(own[name], right, working)
        if name == "lse"
        else judge.budget(
            own[name], _coarser(_part(seen, name), working), keys=keys, backward=name != "out", continuous=continuous
        )
        for name in found
    }
    if rounds_to_integers(step.subject):
        budgets = dict.fromkeys(found, COARSE)
    outcome, note = _verdict(found, budgets, step.subject)
    return Judged(outcome, note, found, budgets, facts={"judged_rows": seen.out.shape[-2]})


def _rounded(yardstick: Answer, seen: Answer, dtype: torch.dtype) -> Answer:
    """The yardstick as coarse as `dtype`, or as what it is held against where that is coarser."""
    lse = None if yardstick.lse is None else yardstick.lse.to(dtype)
    gradients = {name: g.to(_coarser(seen.gradients[name], dtype)) for name, g in yardstick.gradients.items()}
    return Answer(yardstick.out.to(dtype), lse, gradients)


def _coarser(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or the tensor's own: a parameter of a fixed dtype (decays are float32) has a gradient of that dtype."""
    return max(dtype, tensor.dtype, key=lambda one: torch.finfo(one).eps)


def _part(answer: Answer, name: str) -> Tensor:
    """What a distance by that name is about: out, a gradient, or the weight's of a layer's projection."""
    if name == "out":
        return answer.out
    stem = name.removeprefix("d")
    return answer.gradients[stem if stem in answer.gradients else f"{stem}.weight"]


def _lse_budget(own: Errors, right: Answer, dtype: torch.dtype) -> float:
    finite = right.lse[torch.isfinite(right.lse)] if right.lse is not None else torch.zeros(0)
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return judge.FORWARD_FACTOR * own.max_abs + judge.unit_roundoff(dtype) * largest + LSE_FLOOR


def _verdict(found: Mapping[str, Errors], budgets: Mapping[str, float], subject: Subject) -> tuple[str, str]:
    over = []
    for name, errors in found.items():
        distance = _size(name, errors, subject)
        if errors.nonfinite:
            return "wrong", f"{errors.nonfinite} entries of {name} are not finite where they should be"
        if name != "lse" and distance > judge.CEILING:
            return "wrong", f"{name} is off by {distance:.3g} in its worst row"
        if distance > budgets[name]:
            over.append(f"{name}: {distance:.3g} over its budget of {budgets[name]:.3g}")
    return ("imprecise", "; ".join(over)) if over else ("ok", "")


def _size(name: str, errors: Errors, subject: Subject) -> float:
    """The distance that counts: the worst row; of a log-sum-exp the largest; after rounding to integers the whole."""
    if name == "lse":
        return errors.max_abs
    return errors.relative if rounds_to_integers(subject) else errors.worst_row


def rounds_to_integers(subject: Subject) -> bool:
    """True where a layer's transform states an arithmetic of its own, in integers."""
    return any(transform.definition_layer for transform, _ in subject.layer_transforms)


def _function(subject: Subject, cell: Cell, protocol: Protocol) -> str:
    """A sentence when it is not this function, asked in the widest dtype it supports; "" when it is.

    A transform that computes in a narrower dtype on purpose is held to its precision budget only.
    """
    widest = next((d for d in ("f64", "f32") if _can(subject, cell, d)), cell.workload.dtype)
    wide = replace(cell, workload=replace(cell.workload, dtype=widest))
    working = working_dtype(subject, wide)
    if working not in judge.SAME_FUNCTION or rounds_to_integers(subject):
        return ""
    step = make(subject, wide, 1, oracle_rows=protocol.oracle_rows)
    seen = step.seen(0)
    for name, errors in step.distances(seen, step.expected(0)).items():
        distance = _size(name, errors, subject)
        held = working if name == "lse" else _coarser(_part(seen, name), working)
        if not distance <= judge.SAME_FUNCTION[held]:
            return f"not this function: {name} is off by {distance:.3g} in its worst row at {widest}"
    return ""


def _can(subject: Subject, cell: Cell, dtype: str) -> bool:
    return refuses(subject, replace(cell, workload=replace(cell.workload, dtype=dtype))) is None


def _fresh(step: Step, budget: float) -> str:
    """A sentence when the answer to other values is not theirs; "" when it is. Leaves set 1's values in set 0."""
    right = step.expected(1).out
    for which, where in ((1, "on a second input set"), (0, "after other values were put into the same memory")):
        if which == 0:
            step.refill(0, 1)
        distance = _size("out", judge.errors(step.seen(which).out, right), step.subject)
        if not distance <= max(FRESH_MARGIN * budget, judge.SAME_FUNCTION[torch.float32]):
            return f"the output {where} is off by {distance:.3g}: it is remembered, not computed"
    return ""


def check_again(step: Step) -> str:
    """A sentence when a step that has been timed no longer answers other values rightly; "" when it does."""
    return _fresh(step, judge.CEILING / FRESH_MARGIN)


def _distance(step: Step) -> float | None:
    aim: Tensor | None = step.aim(0)
    return None if aim is None else judge.errors(step.seen(0).out, aim).relative


def working_dtype(subject: Subject, cell: Cell) -> torch.dtype:
    """The coarsest dtype the numbers pass through: the workload's, or that of a transform that rounds on purpose.

    tf32 rounds to as many bits as f16 does, so f16 is its yardstick.
    """
    if cell.workload.dtype == "tf32":
        return torch.float16
    named = [DTYPES[a] for t, a in subject.transforms if t.aims_at == "numbers" and a in DTYPES]
    return max((cell.workload.torch_dtype, *named), key=lambda dtype: torch.finfo(dtype).eps)
