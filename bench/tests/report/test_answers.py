"""Who wins, checked against numbers that were put in by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.record import Reading, Record
from bench.report.answers import QUESTIONS, Answer, answer, tally
from bench.report.context import context
from bench.store import Run

FASTEST, LEANEST, EXACT = QUESTIONS
REFERENCE = "softmax.sdpa_flash"


def times(record: Record, values: Sequence[float], rounds: Sequence[int] = ()) -> Record:
    readings = {**record.readings, "latency": Reading("s", tuple(values), tuple(rounds))}
    return replace(record, readings=readings)


@pytest.fixture
def ask(a_run: Callable[..., Run], tmp_path: Path) -> Callable[..., Answer]:
    return lambda question, *records: answer(question, context(a_run(records), tmp_path).cells)


def test_the_smallest_median_wins_and_is_held_against_the_reference(ask, record) -> None:
    slow, fast = times(record(REFERENCE), [4.0] * 8), times(record("softmax.naive"), [1.0] * 8)
    found = ask(FASTEST, slow, fast)
    assert (found.winners, found.value, found.ratio) == (("softmax.naive",), 1.0, 4.0)


def test_a_reference_that_wins_says_by_how_much_the_next_is_behind(ask, record) -> None:
    found = ask(FASTEST, times(record(REFERENCE), [2.0] * 8), times(record("softmax.naive"), [3.0] * 8))
    assert (found.winners, found.ratio, found.ahead) == ((REFERENCE,), None, 1.5)


def test_overlapping_intervals_are_a_tie(ask, record) -> None:
    one = times(record(REFERENCE), [1.0, 1.1, 1.2, 1.3, 1.4, 1.5])  # six values: the 95 % interval is their range
    two = times(record("softmax.naive"), [1.45, 1.5, 1.6, 1.7, 1.8, 1.9])
    three = times(record("softmax.tiled"), [1.51, 1.6, 1.6, 1.7, 1.8, 1.9])
    assert set(ask(FASTEST, one, two, three).winners) == {REFERENCE, "softmax.naive"}


def test_common_rounds_tell_apart_what_drifts_together(ask, record) -> None:
    drift = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    one = times(record(REFERENCE), drift, range(8))
    two = times(record("softmax.naive"), [value * 1.1 for value in drift], range(8))
    assert ask(FASTEST, one, two).winners == (REFERENCE,)
    same = times(record("softmax.naive"), [value * (0.9 + 0.2 * (i % 2)) for i, value in enumerate(drift)], range(8))
    assert set(ask(FASTEST, one, same).winners) == {REFERENCE, "softmax.naive"}


def test_an_imprecise_contender_is_named_but_never_wins(ask, record) -> None:
    best = times(record("softmax.naive", outcome="imprecise"), [1.0] * 8)
    found = ask(FASTEST, times(record(REFERENCE), [2.0] * 8), best)
    assert (found.winners, found.imprecise) == ((REFERENCE,), ("softmax.naive",))


@pytest.mark.parametrize("outcome", ["wrong", "raised", "timeout", "crashed", "unsupported"])
def test_a_number_of_a_failed_cell_never_wins(ask, record, outcome: str) -> None:
    found = ask(
        FASTEST, times(record(REFERENCE), [2.0] * 8), times(record("softmax.naive", outcome=outcome), [1.0] * 8)
    )
    assert (found.winners, found.imprecise, found.alone) == ((REFERENCE,), (), True)


def test_a_failed_reference_leaves_a_winner_without_ratio(ask, record, failure) -> None:
    found = ask(FASTEST, failure(REFERENCE, "timeout", "over 60 s"), record("softmax.naive"))
    assert (found.winners, found.ratio, found.reference) == (("softmax.naive",), None, "")


def test_the_best_of_the_references_function_stands_beside_a_winner_of_another(ask, record) -> None:
    linear, naive = times(record("linear.chunked"), [1.0] * 8), times(record("softmax.naive"), [2.0] * 8)
    found = ask(FASTEST, times(record(REFERENCE), [4.0] * 8), linear, naive)
    assert (found.winners, found.kin, found.kin_ratio) == (("linear.chunked",), "softmax.naive", 2.0)


def test_memory_counts_the_worst_phase_of_the_step(ask, record) -> None:
    two_phases = record(REFERENCE, direction="fwdbwd")  # forward 3 MiB, backward 9 MiB
    naive = record("softmax.naive", direction="fwdbwd")  # forward 66 MiB, backward 198 MiB
    found = ask(LEANEST, two_phases, naive)
    assert (found.winners, found.value, found.ahead) == ((REFERENCE,), 9 * 2**20, 22.0)


def test_one_byte_less_is_leaner(ask, record) -> None:
    less = record("softmax.naive", readings={"peak_forward": Reading("B", (3 * 2**20 - 1,))})
    assert ask(LEANEST, record(REFERENCE), less).winners == ("softmax.naive",)


def test_a_tenth_of_an_error_is_no_difference(ask, record) -> None:
    def error(subject: str, value: float) -> Record:
        return record(subject, readings={"error_out": Reading("1", (value,))})

    assert len(ask(EXACT, error(REFERENCE, 1.09e-7), error("softmax.naive", 1e-7)).winners) == 2
    assert len(ask(EXACT, error(REFERENCE, 1.11e-7), error("softmax.naive", 1e-7)).winners) == 1


def test_no_number_anywhere_is_explained(ask, record, failure) -> None:
    missing = record(REFERENCE, readings={"latency": Reading("s", why_missing="the time budget was spent")})
    assert ask(FASTEST, missing).why == "the time budget was spent"
    assert ask(FASTEST, failure(REFERENCE, "timeout", "")).why == "no contender ended well: timeout"
    assert "precision budget" in ask(FASTEST, record(REFERENCE, outcome="imprecise")).why


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_does_not_win(ask, record, value: float) -> None:
    found = ask(FASTEST, times(record(REFERENCE), [value]), times(record("softmax.naive"), [1.0]))
    assert found.winners == ("softmax.naive",)


def test_only_sole_winners_are_counted() -> None:
    found = tally(
        [Answer(FASTEST, ("a",)), Answer(FASTEST, ("a", "b")), Answer(FASTEST, ("b",)), Answer(FASTEST, ("a",))]
    )
    assert found == [("a", 2), ("b", 1)]
