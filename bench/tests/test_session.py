"""A run from end to end: stored as it goes, killed, resumed, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.store import read_run

SUITE = """
name = "tiny"
why = "end to end"
budget = "1m"
group_budget = "0.3s"
reference = "softmax.sdpa_flash"
[axes]
heads = 2
head_dim = 16
[[sweep]]
why = "three groups"
q_len = [16, 24, 32]
subjects = ["softmax.naive", "softmax.sdpa_flash", "softmax.sdpa_cudnn"]
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "tiny.toml").write_text(SUITE, encoding="utf-8")
    return tmp_path


def command(place, *words):
    around = {**os.environ, "XDG_CACHE_HOME": str(place), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", "from bench.cli import main; main()", *words]
    return subprocess.Popen(program, cwd=place, env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(place, *words):
    process = command(place, *words)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def stored(place):
    return sorted(place.glob("results/*/*.jsonl"))


def wait_for_records(place, process):
    deadline = time.monotonic() + 120
    while not stored(place) or stored(place)[0].read_bytes().count(b'"kind":"record"') < 3:
        assert time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.05)


def test_a_run_that_is_killed_loses_one_group_at_most_and_ends_the_same_when_resumed(place):
    process = command(place, "run", "-s", "tiny.toml")
    wait_for_records(place, process)
    process.kill()
    process.communicate()
    (path,) = stored(place)
    cut = read_run(path)
    assert not cut.finished
    assert len(cut.records) % 3 == 0
    assert finished(place, "run", "--resume", "latest")[0] == 0
    assert stored(place) == [path]
    whole = read_run(path)
    assert whole.finished
    keys = [r.key for r in whole.records]
    assert len(keys) == len(set(keys)) == 9
    assert [r.key.cell for r in whole.records] == whole.header.plan["cells"]
    assert {r.outcome for r in whole.records} == {"ok", "unsupported"}
    assert whole.records[: len(cut.records)] == cut.records
    code, _, err = finished(place, "run", "--resume", "latest")
    assert code == 3
    assert "is finished" in err


def test_control_c_keeps_what_is_measured_and_exits_130(place):
    process = command(place, "run", "-s", "tiny.toml")
    wait_for_records(place, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "attnbench run --resume" in err
    assert len(read_run(stored(place)[0]).records) >= 3


def test_a_run_goes_on_only_where_everything_is_the_same(place):
    process = command(place, "run", "-s", "tiny.toml")
    wait_for_records(place, process)
    process.kill()
    process.communicate()
    (path,) = stored(place)
    first, rest = path.read_text(encoding="utf-8").split("\n", 1)
    header = json.loads(first)
    header["environment_digest"] = "other"
    path.write_text(json.dumps(header, separators=(",", ":")) + "\n" + rest, encoding="utf-8")
    code, _, err = finished(place, "run", "--resume", "latest")
    assert code == 3
    assert "its environment was other" in err


def test_a_second_run_on_the_machine_is_told_who_holds_it(place):
    process = command(place, "run", "-s", "tiny.toml")
    wait_for_records(place, process)
    code, _, err = finished(place, "run", "-s", "tiny.toml")
    assert code == 3
    assert f"pid {process.pid}" in err
    process.kill()
    process.communicate()


def test_json_and_strict_and_the_report(place):
    code, out, _ = finished(place, "run", "-s", "tiny.toml", "-k", "n16 and naive", "--json", "--strict", "--report")
    assert code == 0
    told = json.loads(out)
    assert set(told["outcomes"].values()) == {"ok"}
    assert (place / told["report"]).is_file()
    code, out, _ = finished(place, "compare", "latest", "latest")
    assert code == 0, out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "-s", "tiny.toml", "--mask", "causl"), 2, "no word 'causl'"),
        (("run", "-s", "quik"), 2, "did you mean 'quick'"),
        (("run", "--subject", "sofmax.naive"), 2, "did you mean 'softmax'"),
        (("run", "--metric", "first_cal"), 2, "first_call"),
        (("run", "--plugin", "nothere.py"), 2, "nothere.py"),
        (("run", "--cell", "softmax.naive/b1"), 2, "subject/workload/direction/device"),
        (("run", "--resume", "20990101"), 2, "20990101"),
        (("plan", "-s", "tiny.toml", "--q-len", "zero"), 2, "whole numbers"),
        (("plan", "-s", "tiny.toml", "--budget", "soon"), 2, "no duration"),
    ],
)
def test_mistakes_are_told_in_a_sentence_with_exit_2(place, words, code, said):
    found, _, err = finished(place, *words)
    assert (found, said in err) == (code, True), err
    assert "Traceback" not in err


def test_an_opt_in_metric_is_read_in_a_child_of_its_own(place):
    words = ("run", "-s", "tiny.toml", "-k", "n16 and naive", "--metric", "high_water", "--metric", "first_call_cold")
    code, _, err = finished(place, *words)
    assert code == 0, err
    naive = next(r for r in read_run(stored(place)[0]).records if r.cell["subject"] == "softmax.naive")
    assert naive.readings["first_call_cold"].values[0] > 0
    assert naive.readings["high_water"].values[0] >= 0


def test_a_plan_can_be_seen_without_measuring(place):
    code, out, _ = finished(place, "plan", "-s", "tiny.toml", "--json")
    told = json.loads(out)
    assert code == 0
    assert len(told["cells"]) == 6
    assert {r["outcome"] for r in told["refused"]} == {"unsupported"}
    assert not Path(place / "results").exists()
