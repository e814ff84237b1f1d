"""`attnbench doctor`: what can be measured here and what disturbs it, on scripted machines."""

import json
import subprocess
import sys

import pytest

from bench import cli, doctor, linux, lock
from bench.tests.house import ROOT

STATES = {"ok", "limited", "absent", "disturbed"}


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    """A machine whose kernel files lie below a scripted root, whose second passes at once, and where no run is."""
    monkeypatch.setattr(linux, "ROOT", tmp_path / "root")
    monkeypatch.setattr(doctor.time, "sleep", lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def put(path, text):
        target = tmp_path / "root" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")

    return put


def found(topic):
    return [finding for finding in doctor.examine() if finding.topic == topic]


def test_it_exits_0_and_prints_data(capsys, scripted):
    assert cli.run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {finding["state"] for finding in told} <= STATES
    assert {"machine", "device cpu", "C++ compiler", "heap", "orphans", "py-spy", "load", "other runs"} <= {
        finding["topic"] for finding in told
    }


def test_whatever_is_wrong_comes_with_advice(scripted):
    assert all(finding.advice for finding in doctor.examine() if finding.state == "disturbed")


def test_as_text_it_ends_with_what_disturbs(capsys, scripted):
    scripted("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    assert cli.run(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "cpupower frequency-set -g performance" in told
    assert "disturbed by" in told.splitlines()[-1] and "clock" in told.splitlines()[-1]


@pytest.mark.parametrize(("governor", "state"), [("performance", "ok"), ("powersave", "disturbed"), (None, "limited")])
def test_the_governor_decides_about_the_clock(scripted, governor, state):
    if governor:
        scripted("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor)
    assert [finding.state for finding in found("clock")] == [state]


@pytest.mark.parametrize(("mode", "state"), [("[always] madvise never", "disturbed"), ("always [madvise] never", "ok")])
def test_huge_pages_everywhere_disturb(scripted, mode, state):
    scripted("sys/kernel/mm/transparent_hugepage/enabled", mode)
    assert [finding.state for finding in found("huge pages")] == [state]


def test_a_core_given_to_others_is_told(scripted, monkeypatch):
    looks = iter([{"stolen_s": 1.0, "cpu_s": 100.0, "load": 0.0}, {"stolen_s": 1.4, "cpu_s": 102.0, "load": 0.0}])
    monkeypatch.setattr(doctor, "disturbances", lambda: next(looks))
    (finding,) = found("stolen time")
    assert finding.state == "disturbed" and "20.0%" in finding.text


@pytest.mark.parametrize(("load", "state"), [(0.1, "ok"), (5.0, "disturbed")])
def test_a_busy_machine_is_told(scripted, monkeypatch, load, state):
    monkeypatch.setattr(doctor, "disturbances", lambda: {"stolen_s": 0.0, "cpu_s": 9.0, "load": load})
    monkeypatch.setattr(doctor, "machine", lambda: {"id": "x", "cpu": "x", "cpus": 2, "memory_gib": 1})
    assert [finding.state for finding in found("load")] == [state]


def test_where_the_kernel_counts_nothing_that_is_said(scripted):
    assert [finding.state for finding in found("stolen time")] == ["limited"]
    (counter,) = found("out of memory")
    assert counter.state == "limited" and "killed" in counter.text


def test_a_counter_of_kills_is_named(scripted):
    scripted("proc/vmstat", "nr_free_pages 1\noom_kill 0\n")
    assert found("out of memory")[0].text.endswith("/proc/vmstat")


def test_without_a_compiler_the_command_that_helps_is_told(scripted, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    (finding,) = found("C++ compiler")
    assert finding.state == "absent" and "install g++" in finding.advice


def test_on_macos_each_missing_thing_has_its_named_stand_in(scripted, monkeypatch):
    import psutil

    assert psutil.virtual_memory().total > 0  # imported before the platform is another
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(doctor, "heap_policy", lambda: "system")
    states = {finding.topic: finding.state for finding in doctor.examine()}
    for topic in ("platform", "heap", "orphans", "memory limit", "out of memory", "stolen time", "clock"):
        assert states[topic] == "limited", topic


def test_on_windows_a_sentence_says_what_works(monkeypatch):
    monkeypatch.setattr(doctor.os, "name", "nt")
    (finding,) = doctor._platform()
    assert finding.state == "absent" and "stored runs" in finding.text and finding.advice


def test_one_cpu_for_two_processes_disturbs(scripted, monkeypatch):
    monkeypatch.setattr(doctor, "machine", lambda: {"id": "x", "cpu": "x", "cpus": 1, "memory_gib": 1})
    assert [finding.state for finding in found("cores")] == ["disturbed"]


@pytest.mark.skipif(sys.platform != "linux", reason="locks are flock's")
def test_another_measuring_run_is_found_by_its_lock(scripted):
    holder = (
        "import sys, time\nfrom bench.lock import device_lock\nwith device_lock('cpu'):\n    sys.stdout.write('held')"
    )
    holder += "\n    sys.stdout.flush()\n    sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.read(4) == "held"
        (finding,) = found("other runs")
        assert finding.state == "disturbed" and str(other.pid) in finding.text
        other.stdin.close()
    assert [finding.state for finding in found("other runs")] == ["ok"]
    assert lock.lock_folder().is_dir()


def test_a_kernel_that_lets_nobody_look_into_processes_is_told(scripted, monkeypatch):
    scripted("proc/sys/kernel/yama/ptrace_scope", "3\n")
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor.shutil, "which", lambda *_, **__: "/bin/py-spy")
    (finding,) = found("py-spy")
    assert finding.state == "absent" and "ptrace_scope" in finding.advice
