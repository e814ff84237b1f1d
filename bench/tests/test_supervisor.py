"""A contender that misbehaves costs its own cell only, with the outcome that says so."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from attention_impls import catalogue
from bench import child, supervisor
from bench.plan import build
from bench.protocol import Protocol
from bench.spec import Spec, Sweep, axes_of

HOSTILE = Path(__file__).parent / "data" / "hostile.py"
QUICK = Protocol(
    group_budget_s=0.5, warm_s=0.01, min_rounds=5, step_timeout_s=8.0, first_call_timeout_s=8.0, memory_limit=4 * 2**30
)


@pytest.fixture(autouse=True, scope="module")
def _hostile_kernels():
    catalogue.load_plugin(HOSTILE)
    yield
    catalogue._loaded.clear()
    catalogue.entries.cache_clear()


def measured(*names, protocol=QUICK, **axes):
    spec = Spec(
        "faults",
        (Sweep(tuple(f"softmax.{n}" for n in names), axes_of({"q_len": 48, "heads": 2, "head_dim": 16, **axes})),),
        ("softmax.sdpa_flash",),
    )
    records = [
        r for group in supervisor.run(build(spec, absent_devices={}), protocol, plugins=[HOSTILE]) for r in group
    ]
    return {r.cell["implementation"]: r for r in records}


def test_dying_kernels_cost_their_own_cell_and_the_others_are_timed_together():
    found = measured("naive", "null_read", "late_null_read", "abort", "exit_zero", "exit_three", "raises", "nan")
    assert {n: r.outcome for n, r in found.items()} == {
        "sdpa_flash": "ok",
        "naive": "ok",
        "null_read": "crashed",
        "late_null_read": "crashed",
        "abort": "crashed",
        "exit_zero": "crashed",
        "exit_three": "crashed",
        "raises": "raised",
        "nan": "wrong",
    }
    assert "SIGSEGV" in found["null_read"].note
    assert "SIGABRT" in found["abort"].note
    assert "exit code 0" in found["exit_zero"].note
    assert found["raises"].note == "ValueError: this kernel always raises"
    naive, flash = found["naive"].readings["latency"], found["sdpa_flash"].readings["latency"]
    assert naive.round == flash.round and len(naive.values) >= 5
    assert found["sdpa_flash"].companion
    late = found["late_null_read"].readings
    assert late["error_out"].values, "what was known of it before it died is kept"
    assert "latency" not in late


def test_hanging_kernels_time_out_from_outside():
    start = time.monotonic()
    found = measured("sleeps", "spins", "naive", protocol=replace(QUICK, step_timeout_s=4.0, first_call_timeout_s=4.0))
    assert {n: r.outcome for n, r in found.items()} == {
        "sdpa_flash": "ok",
        "sleeps": "timeout",
        "spins": "timeout",
        "naive": "ok",
    }
    assert time.monotonic() - start < 60


def test_output_on_standard_streams_and_grandchildren_disturb_nothing():
    found = measured("forges", "floods", "leaves_grandchild")
    assert {r.outcome for r in found.values()} == {"ok"}
    assert all(r.note == "" for r in found.values())
    left = [p for p in psutil.process_iter(["cmdline", "status"]) if p.info["cmdline"] == ["sleep", "10000"]]
    assert not [p for p in left if p.info["status"] != psutil.STATUS_ZOMBIE]


def test_writing_to_the_event_pipe_costs_the_writer_its_own_cell():
    found = measured("writes_to_every_pipe", "naive")
    assert found["writes_to_every_pipe"].outcome == "crashed"
    assert "event pipe" in found["writes_to_every_pipe"].note
    assert found["naive"].outcome == "ok"


def test_eating_all_memory_is_out_of_memory_and_the_rest_stands():
    found = measured("eats_memory", "naive", protocol=replace(QUICK, memory_limit=2**30))
    assert (found["eats_memory"].outcome, found["naive"].outcome) == ("out_of_memory", "ok")
    assert found["naive"].readings["latency"].values


def test_an_allocation_in_another_thread_is_not_measurable_and_never_small():
    reading = measured("in_its_own_thread")["in_its_own_thread"].readings["peak_forward"]
    assert reading.values == ()
    assert reading.why_missing.startswith("not measurable")


def test_planted_cheats_are_wrong():
    found = measured("last_output_cached", "keyed_by_address", "worked_in_prepare", "off_by_one_percent")
    for name in ("last_output_cached", "keyed_by_address", "worked_in_prepare", "off_by_one_percent"):
        assert found[name].outcome == "wrong", (name, found[name].note)
        assert "latency" not in found[name].readings
    assert "remembered" in found["keyed_by_address"].note
    assert "not this function" in found["off_by_one_percent"].note


def _idle_job():
    plan = build(Spec("one", (Sweep(("softmax.sleeps",), axes_of({"q_len": 16})),), ()), absent_devices={})
    cells = [(0, supervisor.to_data(plan.cells[0].cell))]
    protocol = supervisor.asdict(QUICK)
    return {"kind": "right", "cells": cells, "reference": None, "metric": None, "protocol": protocol,
            "plugins": [str(HOSTILE)]}  # fmt: skip


def test_a_kill_by_somebody_is_killed_and_not_out_of_memory():
    worker = child.start(_idle_job(), {"OMP_NUM_THREADS": "1"})
    seen = []
    for event in worker.events(lambda _: 60.0):
        seen.append(event["e"])
        if event["e"] == "start":
            os.kill(worker.process.pid, signal.SIGKILL)
    assert worker.death is not None
    assert worker.death.outcome == "killed"


def test_a_child_dies_with_its_supervisor():
    script = (
        "import json, os, sys; from bench import child;"
        "job = json.loads(sys.argv[1]); w = child.start(job, {'OMP_NUM_THREADS': '1'});"
        "events = w.events(lambda e: 60.0);"
        "[print(w.process.pid, flush=True) for e in events if e['e'] == 'start']"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, json.dumps(_idle_job())], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker outlived its supervisor"
        time.sleep(0.1)
    parent.stdout.close()


def test_the_measuring_side_needs_torch_numpy_and_the_standard_library_only(tmp_path, monkeypatch):
    """As in a bare GPU image: whatever else the project installs must not be importable for its children."""
    for name in ("pandas", "matplotlib", "scipy", "rich", "jinja2", "psutil", "click", "pytest", "pytest_benchmark"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not in a bare image')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    found = measured("naive", "tiles", direction="fwdbwd", mask="causal")
    assert {n: r.outcome for n, r in found.items()} == {"sdpa_flash": "ok", "naive": "ok", "tiles": "ok"}, [
        r.note for r in found.values()
    ]
    assert all(r.readings["latency"].values and r.readings["peak_backward"].values for r in found.values())
