"""Who is asked what: entrants of the catalogue, bare and transformed, crossed with checks and cases.

Thinned so that some hundred implementations still fit a coffee break: a bare entrant is asked everything, with its
options small where it has any (at their defaults a short input is one block: there, output and gradients on four
cases); a transformed one is asked output and gradients, on the first implementation of every variant and on one per
distinct Support; ordered pairs of transforms stand on the latter, and in full on softmax.naive.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.catalogue import Subject
from attention_impls.contract import DTYPES, POLICY
from attention_impls.names import Step, SubjectName
from attention_impls.needs import CPP_COMPILER
from attention_impls.tests import conformance_steps as steps
from attention_impls.tests.conformance_cases import CASES, CHAINED, COMPILED, DEGENERATE, UNMASKED
from attention_impls.tests.conformance_checks import CHECKS, COMPILING, EVERY, GRADIENTS, OUTPUT, REFUSALS, Check
from attention_impls.tests.conformance_steps import Definition, Entrant

COMPILED_CHAINS = (
    "softmax.naive+compiled",
    "softmax.naive+recompute+compiled",
    "softmax.naive+query_chunks:8+compiled",
    "softmax.naive+compiled+query_chunks:8",
)
PAIRED = ("square_causal", "grouped_cross")
SMALL = 8  # the size that whole-number options shrink to


@dataclass(frozen=True)
class Asked:
    """One test: an entrant, a check and the name of a case."""

    entrant: Entrant
    check: Check
    case: str

    @property
    def id(self) -> str:
        return f"{self.entrant.name}/{self.case}/{self.check.name}"


@dataclass(frozen=True)
class Plan:
    """Everything that is asked, and for each entrant how often which sentence refused."""

    asked: list[Asked] = field(default_factory=list)
    refused: dict[str, Counter[str]] = field(default_factory=dict)


def entrant(name: str) -> Entrant:
    """The entrant that a name of the catalogue names."""
    return _entrant(catalogue.find(name))


def _entrant(subject: Subject) -> Entrant:
    name = subject.name
    rounding = [f"+{Step(t.label, a)}" for t, a in subject.transforms if t.definition is not None]
    options = "".join(f":{option}-{value}" for option, value in name.variant_options)
    inside = [a for t, a in subject.transforms if t.aims_at == "numbers" and a in DTYPES]
    needs = [n for t, _ in subject.transforms for n in t.needs] + list(subject.bare.support.needs)
    return Entrant(
        str(name),
        subject.inner,
        Definition(name.variant + options + "".join(rounding), subject.definition),
        subject.variant,
        inside=inside[-1] if inside else "",
        compiles=CPP_COMPILER in needs,
        missing=subject.missing(),
    )


def bare_names() -> list[str]:
    """Every implementation, with default options and, where it has any, with small ones."""
    found: dict[str, None] = {}
    for name in catalogue.implementations():
        found.setdefault(name)
        found.setdefault(small(name))
    return list(found)


def small(name: str) -> str:
    """The same with options small enough to be felt on short inputs: many windows, blocks and buckets."""
    parts = catalogue.find(name).name
    entry = catalogue.entries()[parts.variant]
    shrunk = _shrunk(parts, "variant_options", entry.defaults)
    with suppress(catalogue.UnknownNameError):  # another file's, which has the variant at its defaults only
        name = str(catalogue.find(shrunk).name)
    configure = catalogue.find(name).bare.configure
    if configure is None:
        return name
    return str(_shrunk(catalogue.find(name).name, "implementation_options", options_of(configure)))


def _shrunk(name: SubjectName, which: str, defaults: Mapping[str, Any]) -> SubjectName:
    chosen = tuple((option, str(SMALL)) for option, value in defaults.items() if _large(value))
    return replace(name, **{which: chosen})  # type: ignore[arg-type]


def _large(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > SMALL


def options_of(make: Callable[..., Any]) -> dict[str, Any]:
    """A factory's options with their defaults."""
    return {p.name: p.default for p in inspect.signature(make).parameters.values()}


def chains() -> list[str]:
    """Every kernel transform that needs no compiler, as the text after "+", with its example argument."""
    ready = (t for t in catalogue.transforms().values() if t.acts_on == "kernel" and CPP_COMPILER not in t.needs)
    return [str(Step(t.label, t.example)) for t in ready]


def pattern_of(found: Entrant) -> tuple[object, ...]:
    """What a transform can see of an implementation: those with equal patterns are transformed alike."""
    support, variant = found.inner.support, found.drawn
    said = tuple(getattr(support, f) for f in support.__dataclass_fields__ if f not in ("needs", "why_not"))
    return (*said, support.why_not is None, variant.couples, variant.join)


def plan() -> Plan:
    """Everything that conformance asks. Builds every entrant and asks each call for its refusal; runs no kernel."""
    made = Plan()
    bare = {name: entrant(name) for name in bare_names()}
    for name, found in bare.items():
        if found.missing is None and "cpu" in found.inner.support.devices:
            ask(made, found, *_share(found))
        else:
            made.refused[name] = Counter({found.missing or "does not run on cpu": 1})
    asked = {a.entrant.name for a in made.asked}
    _ask_chains(made, {name: found for name, found in bare.items() if name in asked})
    return made


def _share(found: Entrant) -> tuple[Iterable[Check], Iterable[str]]:
    """Checks and cases of a bare entrant: all, unless each costs a compilation or smaller options are asked all."""
    if found.compiles:
        return COMPILING, COMPILED
    if small(found.name) == found.name:
        return CHECKS, EVERY
    return (OUTPUT, GRADIENTS), _few(found, CHAINED)


def _few(found: Entrant, cases: tuple[str, ...]) -> tuple[str, ...]:
    """The cases, or as many without a causal mask for one that cannot be told it."""
    told = found.inner.support.masks & found.drawn.masks
    return cases if "causal" in told else UNMASKED[: len(cases)]


def _ask_chains(made: Plan, ready: Mapping[str, Entrant]) -> None:
    smallest = [n for n in ready if small(n) == n and not ready[n].compiles]
    firsts = {ready[name].definition.key: name for name in reversed(smallest)}
    patterns = {pattern_of(ready[name]): name for name in reversed(smallest)}
    for name, chain in itertools.product(dict.fromkeys([*patterns.values(), *firsts.values()]), chains()):
        _ask_chain(made, f"{name}+{chain}", (OUTPUT, GRADIENTS), CHAINED if name in patterns.values() else PAIRED)
    for name, (inner, outer) in itertools.product(patterns.values(), itertools.permutations(chains(), 2)):
        cases = PAIRED if name == "softmax.naive" else PAIRED[:1]
        _ask_chain(made, f"{name}+{inner}+{outer}", (OUTPUT, GRADIENTS), cases)
    for name in COMPILED_CHAINS if "compiled" in catalogue.transforms() else ():
        _ask_chain(made, name, COMPILING, COMPILED)


def _ask_chain(made: Plan, name: str, asked: Iterable[Check], cases: Iterable[str]) -> None:
    try:
        found = entrant(name)
    except ValueError as error:  # a chain that cannot be built is refused as a whole
        made.refused[name] = Counter({str(error): 1})
        return
    if found.missing is None:
        ask(made, found, asked, _few(found, tuple(cases)))
    else:
        made.refused[name] = Counter({found.missing: 1})


def ask(made: Plan, found: Entrant, asked: Iterable[Check], cases: Iterable[str]) -> None:
    """Adds what is not refused; a refusal is counted and, unless it is a decision, put to the test itself."""
    counted = made.refused.setdefault(found.name, Counter())
    doubted: dict[str, str] = {}
    drawn = cache(partial(steps.draw, found))  # many checks share a case
    for check in asked:
        if check.needs_lse and found.inner.support.lse == "no":
            counted["does not return the log-sum-exp"] += 1
            continue
        for case in (c for c in check.cases if c in cases):
            call = drawn(CASES[case], check.dtype)
            sentence = steps.refusal(found, call, check.direction)
            if sentence is None:
                made.asked.append(Asked(found, check, case))
                continue
            counted[sentence] += 1
            if check in (OUTPUT, GRADIENTS) and not _beyond_doubt(found, call, case, sentence):
                doubted.setdefault(case, check.direction)
    made.asked.extend(Asked(found, REFUSALS[direction], case) for case, direction in doubted.items())


def _beyond_doubt(found: Entrant, call: Call, case: str, sentence: str) -> bool:
    """A refusal that cannot be put to the test: a decision, a call that has no meaning for the mechanism, or one
    so small that a kernel comes out right by chance."""
    hides_nothing = call.mask.simplified().kinds() != call.mask.kinds()
    return POLICY in sentence or found.drawn.undefined(call) is not None or hides_nothing or case in DEGENERATE
