"""Verdicts of hand-made pairs of runs: what must be a finding, and what must never be one."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench import store
from bench.commands import baseline as baseline_command
from bench.commands import compare as compare_command
from bench.compare import FINDINGS, VERDICTS, Comparison, compare, differing, summary
from bench.errors import CannotDo, UserError
from bench.record import Key, MetricInfo, Reading, Record
from bench.store import Run
from bench.tests.data import make_runs
from bench.tests.data.make_runs import AFTER, BEFORE, MACHINE, METRICS, REFERENCE, header, record

DATA = Path(make_runs.__file__).parent
REF = record(REFERENCE, 128)
LATER_REF = record(REFERENCE, 128, hour=1.3)
NAIVE = record("softmax.naive", 128)


def run(records: Sequence[Record], *, finished: bool = True, **changes: Any) -> Run:
    return Run(header(records, **changes), tuple(records), finished, Path("made_up.jsonl"))


def verdicts(before: Sequence[Record], after: Sequence[Record], metric: str, **more: Any) -> dict[str, str]:
    """Verdicts on one metric by subject."""
    found = compare(run(before), run(after), **more)
    return {c.key.cell.split("/")[0]: c.verdict for c in found if c.metric == metric}


def of(found: Sequence[Comparison], subject: str, metric: str) -> Comparison:
    return next(c for c in found if c.metric == metric and c.key.cell.startswith(subject + "/"))


def with_value(old: Record, metric: str, *values: float, unit: str | None = None) -> Record:
    reading = Reading(unit or old.readings[metric].unit, values)
    return replace(old, readings={**old.readings, metric: reading})


@pytest.fixture
def stored() -> list[Comparison]:
    return compare(*(store.read_run(DATA / MACHINE / f"{name}.jsonl") for name in (BEFORE, AFTER)))


# The two stored runs


def test_the_stored_runs_have_exactly_the_verdicts_that_they_were_made_for(stored: list[Comparison]) -> None:
    told = {(c.verdict, c.metric, *c.key.cell.split("/")[:2]) for c in stored if c.verdict not in ("same", "unclear")}
    short, long = "b1-h4-n128-d64-f32-causal", "b1-h4-n256-d64-f32-causal"
    assert told == {
        ("worse", "latency", "softmax.naive", long),
        ("worse", "peak_forward", "softmax.naive", long),
        ("broke", "outcome", "softmax.tiled", long),
        ("fixed", "outcome", "linear.chunked", short),
        ("gone", "outcome", "softmax.rabe", short),
        ("new", "outcome", "softmax.online", short),
    }


def test_a_machine_that_is_slower_as_a_whole_is_no_finding(stored: list[Comparison]) -> None:
    """Every median grew by 30 %, more than the noise floor; only ratios to the reference are judged."""
    tiled = of(stored, "softmax.tiled", "latency")
    assert tiled.after / tiled.before > 1.2
    assert (tiled.verdict, tiled.ratio) == ("unclear", pytest.approx(1, abs=0.05))


def test_a_worse_ratio_says_from_what_to_what(stored: list[Comparison]) -> None:
    naive = next(c for c in stored if c.verdict == "worse" and c.metric == "latency")
    assert naive.ratio == pytest.approx(1.6, rel=0.05)
    assert naive.interval is not None
    assert naive.interval[0] < naive.ratio < naive.interval[1]
    assert naive.why == "1.99 of softmax.sdpa_math, then 3.22"


def test_every_verdict_is_a_known_one_and_shown_metrics_have_none(stored: list[Comparison]) -> None:
    assert {c.verdict for c in stored} <= set(VERDICTS)
    assert set(FINDINGS) == {"worse", "broke", "gone"}
    assert not [c for c in stored if c.metric == "minor_faults"]


def test_a_run_held_against_itself_is_the_same_throughout() -> None:
    seen = store.read_run(DATA / MACHINE / f"{AFTER}.jsonl")
    assert {c.verdict for c in compare(seen, seen)} == {"same"}


# Cells


def test_a_cell_on_one_side_only_is_gone_or_new_and_moves_no_mean() -> None:
    other = record("softmax.tiled", 128)
    found = compare(run([REF, NAIVE, other]), run([REF, NAIVE]))
    assert of(found, "softmax.tiled", "outcome").verdict == "gone"
    mean = summary(found, "peak_forward")
    assert (mean.ratio, mean.left_out) == (1.0, (other.key.cell,))
    assert verdicts([REF, NAIVE], [REF, NAIVE, other], "outcome")["softmax.tiled"] == "new"


def test_runs_without_a_common_cell_are_a_finding_not_a_pass() -> None:
    found = compare(run([NAIVE]), run([record("softmax.naive", 256)]))
    assert [c.verdict for c in found] == ["gone", "new"]


def test_a_cell_that_a_cut_off_run_did_not_reach_says_so() -> None:
    found = compare(run([REF, NAIVE]), Run(header([REF, NAIVE]), (REF,), False, Path("x")))
    gone = of(found, "softmax.naive", "outcome")
    assert gone.verdict == "gone"
    assert "--resume" in gone.why


def test_a_companion_that_nobody_asked_for_is_not_missed() -> None:
    assert verdicts([replace(REF, companion=True), NAIVE], [NAIVE], "outcome")[REFERENCE] == "not_comparable"


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("ok", "ok", "same"),
        ("ok", "imprecise", "broke"),
        ("ok", "wrong", "broke"),
        ("ok", "crashed", "broke"),
        ("ok", "absent", "broke"),
        ("ok", "unsupported", "broke"),
        ("imprecise", "timeout", "broke"),
        ("imprecise", "ok", "fixed"),
        ("wrong", "imprecise", "fixed"),
        ("out_of_memory", "ok", "fixed"),
        ("absent", "absent", "same"),
        ("timeout", "crashed", "unclear"),
    ],
)
def test_an_outcome_that_fell_broke_and_one_that_rose_is_fixed(before: str, after: str, verdict: str) -> None:
    found = compare(run([replace(NAIVE, outcome=before)]), run([replace(NAIVE, outcome=after)]))
    assert of(found, "softmax.naive", "outcome").verdict == verdict


def test_failed_cells_make_a_mean_incomplete_never_better() -> None:
    slow = record("softmax.tiled", 128)
    crashed = record("softmax.tiled", 128, outcome="crashed", readings={})
    for before, after in (([NAIVE, slow], [NAIVE, crashed]), ([NAIVE, crashed], [NAIVE, slow])):
        mean = summary(compare(run(before), run(after)), "peak_forward")
        assert (mean.ratio, mean.left_out) == (1.0, (slow.key.cell,))


def test_another_protocol_is_not_comparable_and_the_field_is_named() -> None:
    other = replace(NAIVE, key=Key(NAIVE.key.cell, "ffff"))
    protocol = {**header([]).protocol, "heap": "system"}
    (found,) = compare(
        run([NAIVE]), run([with_value(other, "peak_forward", 1)], protocol=protocol, protocol_digest="ffff")
    )
    assert (found.verdict, found.metric) == ("not_comparable", "protocol")
    assert "heap: pinned, then system" in found.why


def test_a_time_budget_is_no_part_of_the_protocol() -> None:
    protocol = {**header([]).protocol, "group_budget_s": 99.0}
    found = compare(run([NAIVE]), run([NAIVE], protocol=protocol))
    assert "not_comparable" not in {c.verdict for c in found}


def test_differing_names_each_field_once() -> None:
    assert differing({"a": 1, "b": 2}, {"b": 3, "c": 4}) == [
        "a: 1, then not said",
        "b: 2, then 3",
        "c: not said, then 4",
    ]


def test_another_machine_makes_times_not_comparable_and_leaves_bytes_exact() -> None:
    more = with_value(record("softmax.naive", 128, hour=1.3), "peak_forward", 67_108_877)
    found = compare(run([REF, NAIVE]), run([LATER_REF, more], machine={"id": "agate-64c-0001"}))
    latency = of(found, "softmax.naive", "latency")
    assert latency.verdict == "not_comparable"
    assert latency.why == f"machine: {MACHINE}, then agate-64c-0001"
    assert of(found, "softmax.naive", "peak_forward").verdict == "worse"


# Exact metrics


@pytest.mark.parametrize(
    ("better", "before", "after", "verdict"),
    [
        ("lower", 100, 101, "worse"),
        ("lower", 100, 99, "better"),
        ("lower", 100, 100, "same"),
        ("higher", 100, 99, "worse"),
        ("higher", 100, 101, "better"),
        ("none", 100, 101, "unclear"),
        ("none", 100, 100, "same"),
        ("lower", 0, 0, "same"),
        ("lower", 0, 5, "worse"),
        ("lower", 5, 0, "better"),
        ("lower", 1, math.nan, "worse"),
        ("lower", 1, math.inf, "worse"),
        ("higher", 1, math.nan, "worse"),
        ("lower", math.nan, 1, "better"),
        ("lower", math.nan, math.nan, "same"),
    ],
)
def test_an_exact_metric_counts_at_any_change(better: str, before: float, after: float, verdict: str) -> None:
    metrics = {**METRICS, "peak_forward": MetricInfo("B", better, "exact", "peak")}
    old, new = with_value(NAIVE, "peak_forward", before), with_value(NAIVE, "peak_forward", after)
    found = of(compare(run([old], metrics=metrics), run([new], metrics=metrics)), "softmax.naive", "peak_forward")
    assert found.verdict == verdict
    assert found.ratio is None or math.isfinite(found.ratio)


def test_a_fall_to_nothing_is_a_ratio_of_zero_and_a_rise_from_nothing_is_none() -> None:
    down = compare(run([NAIVE]), run([with_value(NAIVE, "peak_forward", 0)]))
    assert of(down, "softmax.naive", "peak_forward").ratio == 0
    up = compare(run([with_value(NAIVE, "peak_forward", 0)]), run([NAIVE]))
    assert of(up, "softmax.naive", "peak_forward").ratio is None


@pytest.mark.parametrize(("better", "value"), [("lower", 101), ("higher", 99)])
def test_of_several_exact_values_the_worst_counts(better: str, value: float) -> None:
    metrics = {**METRICS, "peak_forward": MetricInfo("B", better, "exact", "peak")}
    old, new = with_value(NAIVE, "peak_forward", 100, 100), with_value(NAIVE, "peak_forward", 100, value)
    found = compare(run([old], metrics=metrics), run([new], metrics=metrics))
    assert of(found, "softmax.naive", "peak_forward").verdict == "worse"


def test_the_same_number_in_another_unit_is_no_alert() -> None:
    old = with_value(NAIVE, "peak_forward", 1.0, unit="MiB")
    assert verdicts([old], [NAIVE], "peak_forward")["softmax.naive"] == "not_comparable"


def test_a_number_that_is_no_longer_to_be_had_is_gone_with_its_reason() -> None:
    lost = replace(
        NAIVE, readings={**NAIVE.readings, "peak_forward": Reading("B", why_missing="allocates in a thread")}
    )
    gone = of(compare(run([NAIVE]), run([lost])), "softmax.naive", "peak_forward")
    assert (gone.verdict, gone.why) == ("gone", "allocates in a thread")
    assert verdicts([lost], [NAIVE], "peak_forward")["softmax.naive"] == "new"


def test_a_metric_that_was_not_asked_for_again_is_not_missed() -> None:
    fewer = replace(NAIVE, readings={"latency": NAIVE.readings["latency"]})
    assert verdicts([NAIVE], [fewer], "peak_forward")["softmax.naive"] == "not_comparable"


def test_a_kind_of_noise_that_this_version_does_not_know_is_not_judged() -> None:
    metrics = {**METRICS, "peak_forward": MetricInfo("B", "lower", "quantum", "peak")}
    found = compare(run([NAIVE], metrics=metrics), run([with_value(NAIVE, "peak_forward", 1e12)], metrics=metrics))
    assert not [c for c in found if c.metric == "peak_forward"]


# Errors and their budgets


@pytest.mark.parametrize(
    ("before", "after", "budget", "verdict"),
    [
        (1e-7, 3.9e-7, 4e-7, "same"),
        (1e-7, 4.1e-7, 4e-7, "worse"),
        (5e-7, 6e-7, 4e-7, "same"),
        (5e-7, 1e-7, 4e-7, "better"),
        (1e-7, math.nan, 4e-7, "worse"),
        (1e-7, math.inf, 4e-7, "worse"),
        (1e-7, 1e-3, None, "same"),
        (1e-7, math.nan, None, "worse"),
    ],
)
def test_an_error_is_held_against_its_budget(before: float, after: float, budget: float | None, verdict: str) -> None:
    old, new = (record("softmax.naive", 128, error=error, budget=budget) for error in (before, after))
    assert verdicts([old], [new], "error_out_worst_row")["softmax.naive"] == verdict


# Times


def timed(seconds: float, hour: float, **more: Any) -> Record:
    return record("softmax.naive", 128, seconds=seconds, hour=hour, **more)


@pytest.mark.parametrize(
    ("factor", "floor", "verdict"),
    [
        (1.0, None, "unclear"),
        (1.2, None, "unclear"),
        (1.4, None, "worse"),
        (0.85, None, "unclear"),
        (0.7, None, "better"),
        (1.2, 0.1, "worse"),
        (1.4, 0.5, "unclear"),
    ],
)
def test_a_time_must_move_beyond_the_noise_floor(factor: float, floor: float | None, verdict: str) -> None:
    before, after = [REF, timed(2e-3, 1.0)], [LATER_REF, timed(2e-3 * factor, 1.3)]
    assert verdicts(before, after, "latency", noise_floor=floor)["softmax.naive"] == verdict


def test_throughput_is_better_the_higher_it_is() -> None:
    metrics = {**METRICS, "latency": MetricInfo("s", "higher", "timed", "throughput")}
    found = compare(run([REF, timed(2e-3, 1.0)], metrics=metrics), run([LATER_REF, timed(4e-3, 1.3)], metrics=metrics))
    assert of(found, "softmax.naive", "latency").verdict == "better"


def test_three_percent_with_an_interval_around_nothing_is_unclear() -> None:
    """Also where the noise floor is smaller: the interval must leave 1 behind."""
    before, after = [REF, timed(2e-3, 1.0, spread=0.3)], [LATER_REF, timed(2.06e-3, 1.3, spread=0.3)]
    found = of(compare(run(before), run(after), noise_floor=0.0), "softmax.naive", "latency")
    assert found.interval is not None
    assert found.interval[0] < 1 < found.interval[1]
    assert found.verdict == "unclear"


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_too_few_rounds_are_unclear_never_zero_spread(rounds: int) -> None:
    before = [record(REFERENCE, 128, rounds=rounds), timed(2e-3, 1.0, rounds=rounds)]
    after = [record(REFERENCE, 128, rounds=rounds, hour=1.3), timed(9e-3, 1.3, rounds=rounds)]
    found = of(compare(run(before), run(after)), "softmax.naive", "latency")
    assert (found.verdict, found.ratio, found.interval) == ("unclear", None, None)
    assert "too few" in found.why


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_cannot_be_makes_the_comparison_unclear(value: float) -> None:
    slow = timed(9e-3, 1.3)
    latency = slow.readings["latency"]
    broken = replace(slow, readings={"latency": replace(latency, values=(value, *latency.values[1:]))})
    found = of(compare(run([REF, NAIVE]), run([LATER_REF, broken])), "softmax.naive", "latency")
    assert (found.verdict, found.ratio) == ("unclear", None)
    assert "1 of 15 rounds" in found.why


@pytest.mark.parametrize(("ours", "theirs"), [(1e-308, 1e308), (1e308, 1e-308)])
def test_times_at_the_edge_of_floats_are_unclear(ours: float, theirs: float) -> None:
    flat = [with_value(REF, "latency", *[theirs] * 15), with_value(NAIVE, "latency", *[ours] * 15)]
    for before, after in ((flat, [REF, NAIVE]), ([REF, NAIVE], flat)):
        assert verdicts(before, after, "latency")["softmax.naive"] == "unclear"


REFUSED = {
    "the reference is another": ({"reference": "softmax.naive"}, "not_comparable", "reference"),
    "two threads": ({"threads": 2}, "unclear", "2 threads"),
    "no reference": ({"reference": ""}, "unclear", "no reference"),
    "the reference is in another group": ({"group": "elsewhere"}, "unclear", "the reference has no number"),
}


@pytest.mark.parametrize(("change", "verdict", "why"), REFUSED.values(), ids=REFUSED)
def test_a_time_without_a_fair_ratio_is_never_a_finding(change: dict[str, Any], verdict: str, why: str) -> None:
    slow = timed(9e-3, 1.3)
    after = replace(slow, cell={**slow.cell, **change})
    both = verdict == "unclear"
    before = replace(NAIVE, cell={**NAIVE.cell, **change}) if both else NAIVE
    found = of(compare(run([REF, before]), run([LATER_REF, after])), "softmax.naive", "latency")
    assert found.verdict == verdict
    assert why in found.why


def test_the_reference_itself_and_one_without_times_judge_nobody() -> None:
    found = compare(run([REF, NAIVE]), run([record(REFERENCE, 128, seconds=9e-3, hour=1.3), timed(2e-3, 1.3)]))
    assert of(found, REFERENCE, "latency").verdict == "unclear"
    dead = record(REFERENCE, 128, outcome="out_of_memory", readings={})
    found = compare(run([REF, NAIVE]), run([dead, timed(9e-3, 1.3)]))
    assert of(found, "softmax.naive", "latency").verdict == "unclear"


def test_rounds_are_matched_by_number_not_by_place() -> None:
    """The reference lost its first rounds, in which the machine was slow: places would compare unlike with unlike."""
    shared = [9.0] * 8 + [1.0] * 12

    def made(subject: str, scale: float, first: int) -> Record:
        rounds = tuple(range(first, 20))
        reading = Reading("s", tuple(scale * shared[i] for i in rounds), rounds, (0,) * len(rounds))
        return replace(record(subject, 128), readings={"latency": reading})

    before = [made(REFERENCE, 1.0, 0), made("softmax.naive", 2.0, 0)]
    after = [made(REFERENCE, 1.0, 8), made("softmax.naive", 2.0, 0)]
    found = of(compare(run(before), run([replace(r, at=2.0) for r in after], commit="b")), "softmax.naive", "latency")
    assert found.verdict in ("unclear", "same")
    after[1] = made("softmax.naive", 2.0001, 0)
    assert of(compare(run(before), run(after)), "softmax.naive", "latency").ratio == pytest.approx(1.0, rel=1e-3)


# Commands


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(DATA / MACHINE, tmp_path / MACHINE)
    monkeypatch.setenv("ATTNBENCH_RESULTS", str(tmp_path))
    return tmp_path


def call(command: Any, *arguments: str) -> Any:
    return CliRunner().invoke(command, list(arguments))


def test_the_command_exits_with_one_on_a_finding_and_prints_it(results: Path) -> None:
    told = call(compare_command.COMMAND, "latest~1", "latest")
    assert told.exit_code == 1
    assert "2 worse, 1 broke, 1 gone, 5 unclear, 1 fixed, 1 new" in told.output
    assert "commit: aaaa1111, then bbbb2222" in told.output
    assert "by +8 B" in told.output
    assert "nan" not in told.output


def test_unclear_is_never_a_finding(results: Path) -> None:
    head = header([REF, NAIVE], "20260303t020000z-cccc-tiny-0003", "2026-03-03T02:00:00Z")
    for run_id, created, records in (
        ("one", "2026-03-03", [REF, NAIVE]),
        ("two", "2026-03-04", [LATER_REF, timed(2.2e-3, 1.3)]),
    ):
        with store.Writer.create(results, replace(head, run=run_id, created=created)) as writer:
            writer.append(records)
            writer.finish(1.0)
    told = call(compare_command.COMMAND, "one", "two")
    assert told.exit_code == 0
    assert "2 unclear" in told.output
    assert call(compare_command.COMMAND, "one", "two", "--noise-floor", "2.5%").exit_code == 1


def test_the_command_compares_the_latest_against_the_baseline(results: Path) -> None:
    missing = call(compare_command.COMMAND)
    assert isinstance(missing.exception, CannotDo)
    assert missing.exception.exit_code == 3
    assert call(baseline_command.COMMAND, "set", "latest").exit_code == 0
    told = call(compare_command.COMMAND)
    assert (told.exit_code, told.exception) == (0, None)
    assert "same" in told.output
    assert call(compare_command.COMMAND, "baseline", "latest~1").exit_code == 1


def test_a_torn_baseline_is_no_pass(results: Path) -> None:
    call(baseline_command.COMMAND, "set", "latest")
    path = results / "baselines" / f"{MACHINE}.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    told = call(compare_command.COMMAND)
    assert isinstance(told.exception, CannotDo)
    assert "cut short" in str(told.exception)


def test_the_command_prints_strict_data(results: Path) -> None:
    told = call(compare_command.COMMAND, "latest~1", "latest", "--json")
    data = json.loads(told.output)
    assert (told.exit_code, data["before"], data["after"], data["findings"]) == (1, BEFORE, AFTER, 4)
    assert len(data["comparisons"]) == len(
        compare(*(store.read_run(DATA / MACHINE / f"{n}.jsonl") for n in (BEFORE, AFTER)))
    )


@pytest.mark.parametrize("floor", ["two", "-5%"])
def test_a_noise_floor_that_is_none_is_the_users_mistake(results: Path, floor: str) -> None:
    assert isinstance(call(compare_command.COMMAND, "latest~1", "latest", "--noise-floor", floor).exception, UserError)


def test_the_baseline_is_set_and_shown(results: Path) -> None:
    told = call(baseline_command.COMMAND, "set", BEFORE, "--json")
    assert json.loads(told.output)["run"] == BEFORE
    assert json.loads(call(baseline_command.COMMAND, "show", "--json").output)["cells"] == 9
    assert f"run: {BEFORE}" in call(baseline_command.COMMAND, "show").output
    assert isinstance(call(baseline_command.COMMAND, "show", "--machine", "agate-1").exception, CannotDo)
