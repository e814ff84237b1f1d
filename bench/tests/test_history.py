"""Night after night: levels, whom a change is charged to, what was accepted, and a table that can be made again."""

import json
import math
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import store
from bench.errors import CannotDo
from bench.history import alarms, nights_of, trends
from bench.report.trends import build_trends
from bench.store import Accepted, Night
from bench.tests.house import ROOT

DATA = Path(__file__).parent / "data"
MACHINE = "quartz-2c-8g-0001"
CELL = "softmax.naive/b1-h4-n128-d64-f32-causal/fwd/cpu1"


def nights(values, cell=CELL, protocol="p"):
    """A row a night; a value of None is a night on which the cell failed."""
    return [
        Night(f"2026-run-{i:03}", f"2026-01-01T00:00:{i:06.3f}+00:00", f"{i:040x}", "tiny", protocol, cell,
              "ok" if value else "raised", value or math.nan, 1e-3, 100.0)
        for i, value in enumerate(values)
    ]  # fmt: skip


def steady(count, level=2.0, seed=0):
    draw = random.Random(seed)
    return [level * math.exp(draw.gauss(0, 0.01)) for _ in range(count)]


def test_a_change_is_charged_to_the_first_night_on_the_new_level():
    (trend,) = trends(nights(steady(20) + steady(2, 2.4, seed=1)))
    (change,) = trend.changes
    assert (change.run, change.before) == ("2026-run-020", "2026-run-019")
    assert (int(change.commit, 16), int(change.commit_before, 16)) == (20, 19)
    assert change.ratio == pytest.approx(1.2, rel=0.02)
    assert (change.nights, change.verdict, change.current) == (2, "worse", True)
    assert alarms([trend]) == [change]


def test_one_bad_night_is_no_alarm_and_a_level_that_is_left_again_is_past():
    assert trends(nights([*steady(20), 2.6]))[0].changes == ()
    assert trends(nights([*steady(10), 2.6, *steady(10, seed=1)]))[0].changes == ()
    (back,) = trends(nights(steady(12) + steady(8, 2.6, seed=1) + steady(8, seed=2)))
    assert [(c.verdict, c.current) for c in back.changes] == [("worse", False), ("better", True)]
    assert alarms([back]) == []


def test_a_faster_level_is_no_alarm():
    (trend,) = trends(nights(steady(12) + steady(6, 1.6, seed=1)))
    assert [c.verdict for c in trend.changes] == ["better"]
    assert alarms([trend]) == []


def test_an_accepted_change_is_silent_whichever_night_of_the_level_was_named():
    rows = nights(steady(12) + steady(6, 2.6, seed=1))
    for run in ("2026-run-012", "2026-run-015"):
        (trend,) = trends(rows, [Accepted(CELL, run, "the mask is right now")])
        assert [(c.verdict, c.why) for c in trend.changes] == [("accepted", "the mask is right now")]
        assert alarms([trend]) == []
    for other in (Accepted("another", "2026-run-012", "x"), Accepted(CELL, "2026-run-003", "x")):
        assert len(alarms(trends(rows, [other]))) == 1


def test_nights_measured_another_way_are_not_compared():
    old, new = nights(steady(12), protocol="p"), nights(steady(6, 2.6, seed=1), protocol="q")
    new = [replace(n, created=f"2026-02-{n.created[8:]}") for n in new]
    (trend,) = trends(old + new)
    assert len(trend.nights) == 6
    assert trend.changes == ()


def test_failed_nights_have_no_ratio_and_a_cell_that_never_worked_has_a_trend_too():
    holes = steady(12)
    holes[3] = holes[7] = None
    (trend,) = trends(nights(holes + steady(4, 2.6, seed=1)))
    assert [c.run for c in trend.changes] == ["2026-run-012"]
    (never,) = trends(nights([None] * 5))
    assert (never.levels, never.changes) == ((), ())


def test_the_rolling_median_needs_five_nights_before_the_last():
    assert math.isnan(trends(nights(steady(5)))[0].rolling)
    assert trends(nights([1.0, 2.0, 3.0, 4.0, 5.0, 9.0]))[0].rolling == pytest.approx(3.0)


@pytest.fixture
def results(tmp_path):
    shutil.copytree(DATA / MACHINE, tmp_path / MACHINE)
    return tmp_path


def test_the_table_is_made_from_runs_grows_by_new_ones_and_outlives_them(results):
    files = sorted((results / MACHINE).glob("*.jsonl"))
    assert len(files) >= 2
    told = []
    first = store.update(results, MACHINE, nights_of, told.append)
    assert {night.run for night in first} == {file.stem for file in files}
    assert all(night.ratio > 0 for night in first if night.outcome == "ok")
    run = store.read_run(files[0])
    reference = next(n for n in first if n.run == run.header.run and "sdpa_math" in n.cell)
    assert reference.ratio == 1.0
    files[0].unlink()
    again = store.update(results, MACHINE, lambda run: pytest.fail("read again"), told.append)
    assert [str(n) for n in again] == [str(replace(n, **_rounded(n))) for n in first]
    assert told == []


def _rounded(night):
    return {name: float(f"{getattr(night, name):.9g}") for name in ("ratio", "seconds", "peak")}


def test_a_run_that_cannot_be_read_is_told_and_left_out(results):
    file = sorted((results / MACHINE).glob("*.jsonl"))[0]
    lines = file.read_text("utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:-1]), "utf-8")
    told = []
    found = store.update(results, MACHINE, nights_of, told.append)
    assert file.stem not in {n.run for n in found}
    assert len(told) == 1
    assert "was cut short" in told[0]
    file.write_text("".join(lines), "utf-8")
    assert file.stem in {n.run for n in store.update(results, MACHINE, nights_of, told.append)}


@pytest.mark.parametrize(
    "text", ["", "a,b\n", "run,created\n1,2\n", "\0", '"'], ids=["empty", "other", "short", "nul", "open"]
)
def test_a_torn_table_is_refused_with_what_helps(results, text):
    store.history_path(results, MACHINE).write_text(text, "utf-8")
    with pytest.raises(CannotDo, match="remove it, it is made again from the runs"):
        store.update(results, MACHINE, nights_of, lambda _: None)


def test_the_page_stands_by_itself_and_takes_no_strangers_markup(tmp_path):
    evil = '<script>alert(1)</script>"onload="x'
    rows = nights(steady(12) + steady(6, 2.6, seed=1)) + nights(steady(6), cell=evil)
    path = build_trends(trends(rows), MACHINE, tmp_path)
    text = path.read_text("utf-8")
    assert path == tmp_path / f"trends-{MACHINE}.html"
    assert "<script" not in text
    assert 'onload="' not in text
    assert "http" not in text.replace("http-equiv", "")
    assert text.count("<svg") == 2
    assert 'class="worse"' in text
    assert "attnbench history --accept" in text


def attnbench(results, *words):
    program = [
        sys.executable,
        "-m",
        "bench.cli",
        "history",
        "--results",
        str(results),
        "--out",
        str(results / "out"),
        *words,
    ]
    return subprocess.run(
        program, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_command_finds_a_worse_level_until_it_is_accepted(results):
    _table(results, nights(steady(20) + steady(4, 2.4, seed=1)))
    done = attnbench(results, "--machine", MACHINE, "--json")
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    assert [c["cell"] for c in said["changes"] if c["verdict"] == "worse"] == [CELL]
    assert Path(said["page"]).is_file()
    for words, code, text in (
        (("--accept", CELL), 2, "needs --why"),
        (("--accept", CELL.replace("naive", "naiv"), "--why", "x"), 2, "did you mean"),
        (("--accept", CELL, "--why", "the price of the new mask"), 0, "0 on a worse level"),
        ((), 0, "accepted"),
    ):
        done = attnbench(results, "--machine", MACHINE, *words)
        assert done.returncode == code, done.stderr
        assert text in done.stdout + done.stderr
    assert attnbench(results, "--machine", "nobody").returncode == 2


def _table(results, rows):
    """A history table as the store writes it, of rows made up here."""
    from bench.store.history import _write

    for file in (results / MACHINE).glob("*.jsonl"):
        file.unlink()
    _write(store.history_path(results, MACHINE), rows)
