"""Drawing, running and judging one step of an entrant: what every conformance check is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor

from attention_impls import inputs, judge, oracle
from attention_impls.call import Call
from attention_impls.contract import DTYPES, Implementation, Output, Variant
from attention_impls.tests.conformance_cases import Case


@dataclass(frozen=True)
class Definition:
    """A variant with its options and stated rounding; equal keys share their expected answers."""

    key: str
    variant: Variant = field(compare=False)


@dataclass(frozen=True, eq=False)
class Entrant:
    """One implementation under a chain of transforms, and the definition it is judged against.

    `drawn` is the variant whose parameters are drawn. `inside` names the dtype a transform rounds to
    inside, else "". `compiles`: every prepare costs seconds.
    """

    name: str
    inner: Implementation
    definition: Definition
    drawn: Variant
    inside: str = ""
    compiles: bool = False
    missing: str | None = None

    @property
    def learned(self) -> frozenset[str]:
        return frozenset(name for name, p in self.drawn.parameters.items() if p.learned)


def entrant_of(implementation: Implementation, name: str = "") -> Entrant:
    """An implementation as an entrant that nobody filed: what mutants and unit tests hand in."""
    variant = implementation.variant
    return Entrant(name or implementation.name, implementation, Definition(variant.name, variant), variant)


def widest(entrant: Entrant) -> str:
    """The dtype in which "is it this function?" is asked."""
    taken = entrant.inner.support.dtypes
    return next((dtype for dtype in ("f64", "f32", "f16", "bf16") if dtype in taken), "f64")


def draw(entrant: Entrant, case: Case, dtype: str = "", which: int = 0) -> Call:
    """The call of a case at `dtype` (default: the widest the entrant takes)."""
    return _draw(entrant.drawn, case, dtype or widest(entrant), which)


def _draw(variant: Variant, case: Case, dtype: str, which: int) -> Call:
    call = inputs.draw(variant, replace(case.workload, dtype=dtype), which=which)
    return replace(call, mask=case.remask(call.mask)) if case.remask else call


def refusal(entrant: Entrant, call: Call, direction: str = "fwd") -> str | None:
    """The sentence of a refusal, else None."""
    return entrant.inner.refuses(call, direction)


def forward(entrant: Entrant, call: Call, lse: bool = False) -> Output:
    """One call, prepared for itself, without gradients."""
    with torch.no_grad():
        return entrant.inner.prepare(call, lse)(call)


def leaves(call: Call, learned: frozenset[str]) -> tuple[Call, dict[str, Tensor]]:
    """The call with q, k, v and learned parameters as leaves that require gradients; and those leaves."""
    q, k, v = (t.detach().requires_grad_() for t in (call.q, call.k, call.v))
    own = {name: p.detach().requires_grad_(name in learned) for name, p in call.parameters.items()}
    tracked = {"q": q, "k": k, "v": v} | {name: own[name] for name in sorted(learned)}
    return replace(call, q=q, k=k, v=v, parameters=own), tracked


def gradients_of(total: Tensor, upstream: Tensor, tracked: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by input name; zeros where nothing depends on an input."""
    if not total.requires_grad:
        raise AssertionError("the output does not require grad although its inputs do; say backward=False in Support")
    found = torch.autograd.grad(total, list(tracked.values()), upstream, allow_unused=True, materialize_grads=True)
    return dict(zip(tracked, found, strict=True))


def backward(entrant: Entrant, call: Call, upstream: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and gradients of one step for `upstream`."""
    own, tracked = leaves(call, entrant.learned)
    out = entrant.inner.prepare(own, False)(own).out
    return out.detach(), gradients_of(out, upstream, tracked)


def upstream_of(call: Call) -> Tensor:
    """A random gradient of the output."""
    like = call.q.new_empty((*call.q.shape[:3], call.v.shape[3]))
    return inputs.draw_upstream(like)


def exact(entrant: Entrant, call: Call, *, gradients: bool = False, dtype: str = "f64") -> oracle.Answer:
    """The definition's answer to any call, on all rows: float64, or `dtype` for the yardstick."""
    upstream = upstream_of(call) if gradients else None
    rows = torch.arange(call.q.shape[2])
    return oracle.answer(
        entrant.definition.variant, call, rows, upstream=upstream, dtype=DTYPES[dtype], learned=entrant.learned
    )


@cache
def _expected(definition: Definition, drawn: Definition, case: Case, dtype: str, which: int) -> oracle.Answer:
    asked = Entrant("", None, definition, drawn.variant)  # type: ignore[arg-type]
    return exact(asked, _draw(drawn.variant, case, dtype, which), gradients=True)


def expected(entrant: Entrant, case: Case, dtype: str = "", which: int = 0) -> oracle.Answer:
    """The definition's answer to a drawn case, with gradients; worked out once for all that share it."""
    drawn = Definition(entrant.definition.key.split("+")[0], entrant.drawn)
    return _expected(entrant.definition, drawn, case, dtype or widest(entrant), which)


@cache
def _rough(definition: Definition, drawn: Definition, case: Case, dtype: str, inside: str) -> oracle.Answer:
    asked = Entrant("", None, definition, drawn.variant)  # type: ignore[arg-type]
    return exact(asked, _draw(drawn.variant, case, dtype, 0), gradients=True, dtype=inside)


def yardstick(entrant: Entrant, case: Case, dtype: str, inside: str) -> oracle.Answer:
    """The definition run in the dtype `inside` on inputs drawn at `dtype`."""
    drawn = Definition(entrant.definition.key.split("+")[0], entrant.drawn)
    return _rough(entrant.definition, drawn, case, dtype, inside)


def same_function(entrant: Entrant, call: Call) -> float:
    """The worst-row error up to which two answers are the same function's."""
    return judge.CEILING if entrant.inside else judge.SAME_FUNCTION.get(call.q.dtype, judge.CEILING)


def allowed(entrant: Entrant, case: Case, dtype: str, name: str, held_in: torch.dtype) -> float:
    """The worst-row error allowed for "out" or the gradient called `name`, which came in the dtype `held_in`.

    A transform that rounds inside is held to the budget of the dtype it rounds to, with the wider factor of
    the two, since other transforms around it may round once more at each part's border.
    """
    if not entrant.inside:
        return judge.SAME_FUNCTION.get(held_in, judge.CEILING)
    return precision(entrant, case, dtype, entrant.inside, name, judge.BACKWARD_FACTOR)


def precision(entrant: Entrant, case: Case, dtype: str, inside: str, name: str, factor: float = 0.0) -> float:
    """The budget derived from the definition's own error when it is run in the dtype `inside`.

    Where that error is so large that a record of the answer would be marked imprecise, it must still be no
    worse than the definition by the same factor: imprecise is allowed to conform, wrong is not.
    """
    rough, right = yardstick(entrant, case, dtype, inside), expected(entrant, case, dtype)
    own = judge.errors(named(rough, name), named(right, name))
    budget = judge.budget(own, DTYPES[inside], keys=case.workload.kv_len, backward=name != "out")
    factor = factor or (judge.FORWARD_FACTOR if name == "out" else judge.BACKWARD_FACTOR)
    return max(budget, factor * own.worst_row + judge.unit_roundoff(DTYPES[inside]))


def named(answer: oracle.Answer, name: str) -> Tensor:
    """The output, or the gradient of the input called `name`."""
    return answer.out if name == "out" else answer.gradients[name]


def worst(actual: Tensor, right: Tensor, scale: float = 0.0) -> float:
    """Worst-row error, measured against `scale` where that is larger than the head's own size.

    Gradients that cancel to nothing (one visible key) have no size of their own to be measured by.
    """
    found = judge.errors(actual, right)
    return min(found.worst_row, found.max_abs / scale) if scale else found.worst_row


def held(who: Entrant, case: Case, what: str, error: float, limit: float, advice: str) -> None:
    """Raises AssertionError unless the error is within the limit; NaN is not."""
    if not error <= limit:
        raise AssertionError(
            f"{who.name}, case {case.name}: {what}: worst-row error {error:.3g}, allowed {limit:.3g}. {advice}"
        )


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fresh memory of torch.empty and its kin is NaN (True, largest integer) inside."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]
