"""Conformance over everything the catalogue finds, bare and under each transform that does not refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from attention_impls import catalogue, names
from attention_impls.tests import conformance_plan as planning
from attention_impls.tests import conformance_steps as steps
from attention_impls.tests.conformance_cases import CASES
from attention_impls.tests.conformance_checks import CHECKS, REFUSALS
from attention_impls.tests.conformance_plan import Asked, Plan
from attention_impls.tests.conformance_steps import Entrant

NOT_CHECKED = Path(__file__).with_name("not_checked_on_cpu.txt")
_plan = cache(planning.plan)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "asked" in metafunc.fixturenames:
        metafunc.parametrize("asked", [_parameter(asked) for asked in _plan().asked])


def _parameter(asked: Asked):
    return pytest.param(asked, id=asked.id, marks=[pytest.mark.slow] if asked.entrant.compiles else [])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # small kernels: more threads only wait for one another
    yield
    torch.set_num_threads(before)


def test_conformance(asked: Asked) -> None:
    asked.check.function(asked.entrant, CASES[asked.case])


def test_an_entrant_whose_checks_were_all_skipped_fails() -> None:
    made = _plan()
    asked = {a.entrant.name for a in made.asked if a.check not in REFUSALS.values()}
    excused = {name for name, _ in _listed() if not _can_be_checked_here(name)}
    # At its defaults an entrant may take none of the few short inputs it is asked there: then its small self answers.
    heard = {name for name in planning.bare_names() if {name, planning.small(name)} & (asked | excused)}
    silent = {name: made.refused[name] for name in planning.bare_names() if name not in heard}
    assert not silent, f"nothing was asked of {silent}; widen Support, or add a case that it takes"


def _options() -> list[tuple[str, str]]:
    return [(name, option) for name, entry in catalogue.entries().items() for option in entry.defaults]


def _with_option(variant: str, option: str, value: object) -> Entrant:
    """The variant's first implementation, small in every option but the given one."""
    entry = catalogue.entries()[variant]
    small = dict(catalogue.find(planning.small(catalogue.implementations(variant)[0])).name.variant_options)
    chosen = {name: str(small.get(name, default)) for name, default in entry.defaults.items()} | {option: str(value)}
    name = replace(names.parse(catalogue.implementations(variant)[0]), variant_options=tuple(chosen.items()))
    return planning.entrant(str(name))


@pytest.mark.parametrize(("variant", "option"), _options())
def test_every_option_of_a_variant_is_felt(variant: str, option: str) -> None:
    default = catalogue.entries()[variant].defaults[option]
    values = [planning.SMALL, 4, 2, 1, 0] if isinstance(default, int) else [default, default / 2]
    outs = []
    for value in values:
        try:
            who = _with_option(variant, option, value)
        except ValueError:
            continue
        calls = [steps.draw(who, CASES[case]) for case in ("round", "square_causal")]
        outs += [[steps.exact(who, call).out for call in calls if steps.refusal(who, call) is None]]
    felt = any(not torch.equal(*pair) for other in outs[1:] for pair in zip(outs[0], other, strict=False))
    assert felt, f"{variant}: option {option} changes nothing at {values}; drop it, or make it act"


@pytest.mark.parametrize(("variant", "option"), _options())
def test_an_option_without_sense_is_refused_by_a_sentence(variant: str, option: str) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        _with_option(variant, option, -3)


def test_every_check_was_asked_of_somebody() -> None:
    asked = {a.check.name for a in _plan().asked}
    assert {check.name for check in CHECKS} <= asked


def test_refusals_are_counted_for_every_entrant_with_a_sentence() -> None:
    for name, sentences in _plan().refused.items():
        for sentence, count in sentences.items():
            assert count > 0 and len(sentence.split()) > 2, f"{name} refuses with {sentence!r}: write a sentence"


def test_the_list_of_what_is_not_checked_on_cpu_is_neither_stale_nor_short() -> None:
    expected = {(name, reason) for name in planning.bare_names() if (reason := _may_be_absent(name))}
    listed = set(_listed())
    assert listed == expected, f"{NOT_CHECKED.name}: remove {listed - expected}, add {expected - listed}"


def _listed() -> list[tuple[str, str]]:
    lines = [line for line in NOT_CHECKED.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return [(name, reason) for name, _, reason in (line.partition(": ") for line in lines)]


def _may_be_absent(name: str) -> str:
    """Why some machine without a GPU cannot check it: told from what it declares, not from what is here."""
    support = catalogue.find(name).bare.support
    if "cpu" not in support.devices:
        return f"runs on {', '.join(sorted(support.devices))}"
    return "; ".join(f"needs {need.what}" for need in support.needs)


def _can_be_checked_here(name: str) -> bool:
    subject = catalogue.find(name)
    return "cpu" in subject.bare.support.devices and subject.missing() is None


def test_the_thinned_plan_stays_small_enough_for_a_hundred_implementations() -> None:
    made: Plan = _plan()
    bare = len(planning.bare_names())
    assert len(made.asked) < 400 * bare
