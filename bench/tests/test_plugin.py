"""pytest is a door to the same measurements: what it shows is what the store holds."""

import json
import math
import signal
import statistics
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pytest_benchmark.utils import get_machine_id

from bench import pytest_options
from bench.protocol import Protocol
from bench.record import Key, Reading, Record
from bench.replay import extra_info
from bench.store import read_run

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
ENTRY = ROOT / "bench" / "test_attention.py"
HOSTILE = Path(__file__).parent / "data" / "hostile.py"
INSTALLED = bool(entry_points(group="pytest11", name="attnbench"))
PLUGIN = () if INSTALLED else ("-p", "bench.plugin")
SUITE = """
name = "tiny"
reference = "softmax.naive"
group_budget = "200ms"
[axes]
q_len = {lengths}
heads = 2
head_dim = 16
[[sweep]]
subjects = {subjects}
"""


@pytest.fixture(autouse=True)
def of_this_tree_alone(pytester, monkeypatch):
    """What is started imports the project that is tested, in an empty folder, with nothing set by the caller."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "cache"))
    for name in ("PYTEST_ADDOPTS", "ATTNBENCH_RESULTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def door(pytester):
    """Runs pytest on the one test file with a suite of few small cells."""

    def words(*options, subjects=("naive", "sdpa_flash"), lengths=(64,)):
        names = [f"softmax.{name}" for name in subjects]
        suite = Path("tiny.toml").resolve()
        suite.write_text(SUITE.format(lengths=list(lengths), subjects=names))
        return [*PLUGIN, "-p", "no:cacheprovider", str(ENTRY), f"--attn-suite={suite}", *options]

    def run(*options, **suite):
        return pytester.runpytest_subprocess(*words(*options, **suite))

    run.words = words
    return run


def stored():
    [path] = Path("results").glob("*/*.jsonl")
    return read_run(path)


def strict(path="out.json"):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(Path(path).read_text(), parse_constant=refuse)


def entry(document, implementation):
    [found] = [b for b in document["benchmarks"] if b["extra_info"]["cell"]["implementation"] == implementation]
    return found


def test_failing_cells_fail_with_their_sentence_and_the_others_are_shown_as_they_are_stored(door):
    subjects = ("naive", "sdpa_flash", "nan", "raises", "null_read", "sdpa_cudnn")
    result = door("--benchmark-only", "--benchmark-json=out.json", f"--attn-plugin={HOSTILE}", "-rs", subjects=subjects)
    result.assert_outcomes(passed=2, failed=3, skipped=1)
    assert result.ret == 1
    for sentence in (
        "raised: ValueError: this kernel always raises",
        "crashed: died of SIGSEGV",
        "CellFailed: wrong: ",
    ):
        result.stdout.fnmatch_lines([f"*{sentence}*"])
    result.stdout.fnmatch_lines(["SKIPPED*unsupported: *cuda*"])

    run, document = stored(), strict()
    assert run.finished
    outcomes = {r.cell["implementation"]: r.outcome for r in run.records}
    failed = {"nan": "wrong", "raises": "raised", "null_read": "crashed", "sdpa_cudnn": "unsupported"}
    assert outcomes == {"naive": "ok", "sdpa_flash": "ok", **failed}
    beside = {cell["id"].split("/")[0].removeprefix("softmax."): cell for cell in document["attnbench"]["cells"]}
    assert {name: cell["outcome"] for name, cell in beside.items()} == failed
    assert "always raises" in beside["raises"]["note"]
    assert document["attnbench"]["run"] == run.header.run == run.path.stem

    assert len(document["benchmarks"]) == 2
    for record in run.records[:2]:
        shown = entry(document, record.cell["implementation"])
        latency = record.readings["latency"]
        assert shown["stats"]["iterations"] == latency.inner[0]
        assert shown["stats"]["data"] == pytest.approx(latency.values, rel=1e-14)
        assert shown["stats"]["median"] == pytest.approx(statistics.median(latency.values), rel=1e-14)
        assert shown["options"]["timer"] == "attnbench_replay"
        assert shown["group"] == record.cell["group"]
        told = shown["extra_info"]
        assert told["outcome"] == "ok" and told["backend"] == record.backend != ""
        assert told["metrics"]["peak_forward"] == {"unit": "B", "value": record.readings["peak_forward"].values[0]}
        assert told["metrics"]["error_out"]["value"] == record.readings["error_out"].values[0]
        assert told["protocol"]["digest"] == run.header.protocol_digest
        assert told["stop_reason"] in ("time", "precise", "slow")
    assert not [name for name in document["machine_info"]["cpu"] if name.startswith("hz_actual")]


def test_a_chosen_cell_is_measured_beside_its_reference_and_the_limits_of_pytest_benchmark_hold(door):
    result = door(
        "-k", "sdpa_flash", "--benchmark-json=out.json", "--benchmark-max-time=0.01", "--benchmark-min-rounds=23",
        "--attn-results=elsewhere",
    )  # fmt: skip
    result.assert_outcomes(passed=1, deselected=1)
    [path] = Path("elsewhere").glob("*/*.jsonl")
    run = read_run(path)
    assert [(r.cell["implementation"], r.companion) for r in run.records] == [("naive", True), ("sdpa_flash", False)]
    naive, flash = (r.readings["latency"] for r in run.records)
    assert naive.round == flash.round
    assert len(flash.values) == 23, (
        "10 ms for each of two contenders are over long before the rounds that were asked for"
    )
    assert run.header.protocol["group_budget_s"] == 0.02
    document = strict()
    assert len(entry(document, "sdpa_flash")["stats"]["data"]) == 23
    [companion] = document["attnbench"]["cells"]
    assert companion["companion"] and companion["outcome"] == "ok"
    assert companion["seconds"] == list(naive.values)


def test_a_regression_against_another_machine_ends_with_a_whole_summary(door):
    cell = "softmax.sdpa_flash/b1-h2-n64-d16-f32-full/fwd/cpu1"
    faster = dict.fromkeys(["min", "max", "mean", "median", "q1", "q3", "total"], 1e-9)
    other = dict.fromkeys(["stddev", "iqr", "iqr_outliers", "stddev_outliers", "ld15iqr", "hd15iqr", "ops"], 0)
    counts = {"rounds": 1, "iterations": 1, "outliers": "0;0"}
    before = {"fullname": f"bench/test_attention.py::test_attention[{cell}]", "stats": faster | other | counts}
    saved = Path("deep", get_machine_id(), "0001_before.json")
    saved.parent.mkdir(parents=True)
    saved.write_text(json.dumps({"machine_info": {"node": "elsewhere"}, "benchmarks": [before]}))
    words = door.words(
        "-k", "sdpa_flash", "--benchmark-max-time=0.01", "--benchmark-compare", "--benchmark-compare-fail=min:50%",
        f"--benchmark-storage=file://{Path('deep').resolve()}",
    )  # fmt: skip
    Path("below").mkdir()
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd="below", capture_output=True, text=True, check=False
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "INTERNALERROR" not in result.stdout + result.stderr
    assert "1 passed, 1 deselected" in result.stdout
    assert "Performance has regressed" in result.stdout
    assert "another machine" in result.stdout


@pytest.mark.parametrize("storage", ["inside", "../outside"])
def test_a_saved_run_of_another_machine_is_told_and_no_internal_error(pytester, storage):
    saved = Path(storage, get_machine_id(), "0001_before.json")
    saved.parent.mkdir(parents=True)
    saved.write_text(json.dumps({"machine_info": {"node": "elsewhere"}, "benchmarks": []}))
    pytester.makepyfile("def test_light(): pass")
    result = pytester.runpytest_subprocess(
        *PLUGIN, "-p", "no:hypothesispytest", "-Werror", "--benchmark-compare", f"--benchmark-storage={storage}"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["attnbench: the run compared with comes from another machine*"])


def test_an_interruption_keeps_what_is_measured(door):
    words = door.words("--benchmark-only", "--benchmark-json=out.json", "-v", lengths=(64, 96))
    with Path("said.txt").open("w") as said:
        process = subprocess.Popen([sys.executable, "-m", "pytest", *words], stdout=said)
    deadline = time.monotonic() + 120
    while Path("said.txt").read_text().count("PASSED") < 2:  # stored comes first, shown after
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == pytest.ExitCode.INTERRUPTED
    run = stored()
    assert {r.cell["q_len"] for r in run.records} == {64} and len(run.records) == 2
    assert not run.finished
    assert {b["extra_info"]["cell"]["q_len"] for b in strict()["benchmarks"]} == {64}


def test_extra_info_is_strict_json_whatever_was_measured():
    readings = {"error_out": Reading("1", (math.nan,)), "rates": Reading("1", (math.inf, 2.0)), "gone": Reading("B")}
    record = Record(Key("c", "d"), {"id": "c"}, "ok", readings, facts={"precision_within_process": -math.inf})
    told = extra_info(record, Protocol(), "run")
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert [told["metrics"][name].get("value") for name in readings] == ["nan", ["inf", 2.0], None]
    assert told["facts"] == {"precision_within_process": "-inf"}


@pytest.mark.parametrize("options", [(), ("--benchmark-disable",)], ids=["plain", "disabled"])
def test_without_measuring_each_step_runs_once_and_nothing_is_stored(door, options):
    result = door(*options, f"--attn-plugin={HOSTILE}", subjects=("naive", "raises", "sdpa_cudnn"))
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*ValueError: this kernel always raises*"])
    assert "Iterations" not in result.stdout.str(), "one call is no time to show in a table"
    assert not Path("results").exists()


def test_skipping_measures_nothing(door):
    door("--benchmark-skip").assert_outcomes(skipped=2)
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--benchmark-cprofile=ncalls", "--benchmark-cprofile would profile the replay*attnbench profile ID"),
        ("--attn-suite=quik", "no suite called 'quik'; did you mean 'quick'?"),
    ],
    ids=["cprofile", "unknown suite"],
)
def test_what_makes_no_sense_ends_the_session_before_anything_is_measured(door, option, sentence):
    result = door("--benchmark-only", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {sentence}"])
    assert not Path("results").exists()


@pytest.mark.parametrize(
    "option",
    [
        "--benchmark-cprofile=ncalls", "--benchmark-timer=time.time", "--benchmark-warmup=on", "--benchmark-histogram",
        "--benchmark-warmup-iterations=3", "--benchmark-min-time=1", "--benchmark-calibration-precision=3",
        "--benchmark-confidence=0.9", "--benchmark-compare-fail=min:5%",
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(pytester, monkeypatch, option):
    monkeypatch.setitem(sys.modules, "pygal", None)
    config = pytester.parseconfigure(*PLUGIN, option)
    assert pytest_options.wants_numbers(config)
    assert pytest_options.refusal(config).startswith(option.partition("=")[0] + " ")


def test_workers_of_xdist_are_refused_measuring(pytester, monkeypatch):
    config = pytester.parseconfigure(*PLUGIN)
    assert pytest_options.refusal(config) == ""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert "run without -n" in pytest_options.refusal(config)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("", False),
        ("--attn-suite=quick", False),
        ("--benchmark-only", True),
        ("--benchmark-columns=min", True),
        ("--attn-results=here", True),
        ("--benchmark-json=out.json --benchmark-disable", False),
        ("--benchmark-disable --benchmark-enable", True),
        ("--benchmark-skip", False),
        ("--benchmark-skip --benchmark-only", True),
        ("--benchmark-only --collect-only", False),
    ],
)
def test_numbers_are_wanted_where_an_option_of_measuring_is_given(pytester, options, wanted):
    assert pytest_options.wants_numbers(pytester.parseconfigure(*PLUGIN, *options.split())) is wanted


def test_a_session_of_other_tests_loads_nothing_heavy(door, pytester):
    pytester.makepyfile(
        """
        import sys

        def test_light():
            assert not {"torch", "numpy", "pandas", "attention_impls"} & set(sys.modules)

        def test_timed(benchmark):
            benchmark.pedantic(sum, args=([1, 2],), rounds=3)
        """
    )
    options = ("--benchmark-cprofile=ncalls", "--benchmark-warmup=on")  # refused only where attention is measured
    others = ("-p", "no:hypothesispytest", "-p", "no:jaxtyping")  # plugins of libraries that load numpy themselves
    result = pytester.runpytest_subprocess(*PLUGIN, *others, *options)
    result.assert_outcomes(passed=2)
