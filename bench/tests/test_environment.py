"""Which machine this is, what may change its numbers, what disturbs it, and which source was measured.

The kernel's files are written by hand below a scripted root, so that every machine can be here.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench import environment, linux, revision
from bench.tests.house import ROOT

INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 167
model name\t: {name}
stepping\t: 1
cpu MHz\t\t: {mhz}
flags\t\t: fpu sse2 {extra}avx avx2 avx512f

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: {name}
cpu MHz\t\t: 3000.000
"""
GRAVITON = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
"""


@pytest.fixture
def files(monkeypatch, tmp_path):
    """Puts files below a root that stands for "/"; takes path=text. Two CPUs allowed, no GPU, Linux on x86-64."""
    monkeypatch.setattr(linux, "ROOT", tmp_path)
    monkeypatch.setattr(environment.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(environment, "gpus", list)
    monkeypatch.setattr(environment.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(environment.platform, "system", lambda: "Linux")
    monkeypatch.setattr(environment.platform, "processor", lambda: "")

    def put(**texts):
        for path, text in texts.items():
            target = tmp_path / path.replace("__", "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")

    return put


def intel(name="Intel(R) Xeon(R) Processor", mhz="2000.000", extra=""):
    return INTEL.format(name=name, mhz=mhz, extra=extra)


def memory(gib):
    return f"MemTotal:       {int(gib * 2**20)} kB\nMemAvailable: 1 kB\n"


def test_a_machines_id_is_readable_and_can_name_a_folder(files):
    files(proc__cpuinfo=intel(), proc__meminfo=memory(22.9))
    assert re.fullmatch(r"xeon-f6m167-avx512-2c-23g-[0-9a-f]{4}", environment.machine()["id"])


def test_an_arm_machine_has_an_id_from_what_its_kernel_tells(files, monkeypatch):
    monkeypatch.setattr(environment.platform, "machine", lambda: "aarch64")
    files(proc__cpuinfo=GRAVITON, proc__meminfo=memory(31.8))
    found = environment.machine()
    assert re.fullmatch(r"aarch64-f8m0xd40-sve-2c-32g-[0-9a-f]{4}", found["id"])
    assert (found["vendor"], found["model"], found["stepping"]) == ("0x41", "0xd40", "1")


def test_a_masked_model_name_clock_and_host_change_no_id(files, monkeypatch):
    files(proc__cpuinfo=intel("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "2900.000"), proc__meminfo=memory(23))
    told = environment.machine()["id"]
    files(proc__cpuinfo=intel("Intel(R) Xeon(R) Processor", "3500.123"), proc__meminfo=memory(23.2))
    monkeypatch.setattr(environment.platform, "node", lambda: "another", raising=False)
    assert environment.machine()["id"] == told


@pytest.mark.parametrize(
    "change",
    [
        {"proc__cpuinfo": intel(extra="amx_bf16 ")},
        {"proc__cpuinfo": intel().replace("stepping\t: 1", "stepping\t: 2")},
        {"proc__meminfo": memory(64)},
        {"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu.max": "100000 100000\n"},
    ],
    ids=["flags", "stepping", "memory", "quota"],
)
def test_what_the_hardware_is_changes_the_id(files, change):
    files(proc__cpuinfo=intel(), proc__meminfo=memory(23))
    before = environment.machine()["id"]
    files(**change)
    assert environment.machine()["id"] != before


def test_a_gpu_is_part_of_the_machine(files, monkeypatch):
    files(proc__cpuinfo=intel(), proc__meminfo=memory(23))
    monkeypatch.setattr(environment, "gpus", lambda: ["NVIDIA H200 141g", "NVIDIA H200 141g"])
    assert re.fullmatch(r"xeon-f6m167-avx512-2c-23g-2xh200-[0-9a-f]{4}", environment.machine()["id"])


@pytest.mark.parametrize(
    "name", ["Ünïcode ☃ CPU", "../../etc/passwd", "", "AMD EPYC 7763 64-Core Processor", "\x1b[31m"]
)
def test_an_id_keeps_to_its_letters_whatever_the_kernel_says(files, name):
    files(proc__cpuinfo=intel(name), proc__meminfo=memory(8))
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", environment.machine()["id"])


def test_without_any_file_of_the_kernels_there_is_still_a_machine(files, monkeypatch):
    monkeypatch.setattr(environment.sys, "platform", "darwin")
    monkeypatch.setattr(environment.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(environment.platform, "processor", lambda: "arm")
    monkeypatch.setattr(environment.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(environment.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * 2**30))
    found = environment.machine()
    assert re.fullmatch(r"arm-8c-16g-[0-9a-f]{4}", found["id"])
    assert found["os"] == "darwin"


def test_this_machines_own_id_is_the_same_in_another_process():
    code = "from bench.environment import machine; import sys; sys.stdout.write(machine()['id'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == environment.machine()["id"]


@pytest.mark.parametrize(
    ("texts", "cpus"),
    [
        ({}, None),
        ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__b__cpu.max": "max 100000"}, None),
        ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__cpu.max": "150000 100000"}, 1.5),
        (
            {
                "proc__self__cgroup": "0::/a\n",
                "sys__fs__cgroup__a__cpu.max": "400000 100000",
                "sys__fs__cgroup__cpu.max": "50000 100000",
            },
            0.5,
        ),
        ({"proc__self__cgroup": "3:cpu,cpuacct:/\n", "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "-1"}, None),
        ({"proc__self__cgroup": "0::/../x\n", "sys__fs__cgroup__x__cpu.max": "300000 100000"}, 3.0),
    ],
    ids=["no cgroup", "no limit", "limit above", "the lowest counts", "version 1 unlimited", "outside the mount"],
)
def test_the_cpu_quota_is_the_lowest_on_the_way_up(files, texts, cpus):
    files(**texts)
    assert linux.cpu_quota() == cpus


def test_a_quota_of_version_1_is_read_with_its_period(files, tmp_path):
    folder = tmp_path / "sys" / "fs" / "cgroup" / "cpu"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("20000")
    (folder / "cpu.cfs_period_us").write_text("10000")
    files(proc__self__cgroup="4:cpu:/\n")
    assert linux.cpu_quota() == 2.0


@pytest.mark.parametrize(("quota", "cpus"), [("50000 100000", 1), ("150000 100000", 2), ("900000 100000", 2)])
def test_cpus_are_limited_by_affinity_and_by_the_quota_rounded_up(files, quota, cpus):
    files(proc__self__cgroup="0::/\n", **{"sys__fs__cgroup__cpu.max": quota})
    assert environment.allowed_cpus() == cpus


def test_a_containers_memory_limit_counts_where_it_is_lower(files):
    files(proc__meminfo=memory(64), proc__self__cgroup="0::/\n", **{"sys__fs__cgroup__memory.max": str(8 * 2**30)})
    assert linux.memory_bytes() == 8 * 2**30
    files(**{"sys__fs__cgroup__memory.max": "max"})
    assert linux.memory_bytes() == 64 * 2**30


def test_no_limit_of_version_1_is_no_limit(files, tmp_path):
    folder = tmp_path / "sys" / "fs" / "cgroup" / "memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712")
    files(proc__meminfo=memory(64), proc__self__cgroup="4:memory:/\n")
    assert linux.memory_bytes() == 64 * 2**30
    files(proc__meminfo="")
    assert linux.memory_bytes() is None


def test_stolen_time_is_the_share_between_two_looks(files):
    tick = os.sysconf("SC_CLK_TCK")
    files(proc__stat=f"cpu  {10 * tick} 0 0 {80 * tick} 0 0 0 {10 * tick} {5 * tick} 0\ncpu0 1 1 1 1\n")
    assert linux.cpu_seconds() == (10.0, 100.0)
    before = environment.disturbances()
    files(proc__stat=f"cpu  {20 * tick} 0 0 {165 * tick} 0 0 0 {15 * tick} {6 * tick} 0\n")
    assert environment.stolen_share(before, environment.disturbances()) == pytest.approx(5 / 100)


def test_without_the_kernels_counters_nothing_is_said_to_be_stolen(files):
    now = environment.disturbances()
    assert (now["stolen_s"], now["cpu_s"], now["mhz"]) == (0.0, 0.0, None)
    assert environment.stolen_share(now, now) == 0.0


def test_the_clock_is_the_mean_over_the_processors(files):
    files(proc__cpuinfo=intel(mhz="2000.000"))
    assert linux.mhz() == 2500.0


@pytest.mark.parametrize(
    ("said", "mode"), [("always [madvise] never", "madvise"), ("[always] madvise never", "always")]
)
def test_the_mode_of_huge_pages_is_the_word_in_brackets(files, said, mode):
    files(sys__kernel__mm__transparent_hugepage__enabled=said)
    assert linux.huge_pages() == mode


def test_a_driver_is_read_off_the_kernels_file(files):
    files(
        proc__driver__nvidia__version="NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\nGCC 12\n"
    )
    assert linux.gpu_driver() == "550.54.15"


def test_containers_are_known_by_their_marks(files):
    assert not linux.in_container()
    files(**{".dockerenv": ""})
    assert linux.in_container()


def test_the_environment_is_plain_and_the_same_twice():
    found = environment.environment()
    assert all(isinstance(value, str | int | float | bool | None) for value in found.values())
    assert environment.environment() == found
    assert json.loads(json.dumps(found)) == found


def test_the_environment_names_what_torch_was_built_with():
    import platform

    import numpy
    import torch

    found = environment.environment()
    assert found["torch"] == torch.__version__ and found["torch_git"] == torch.version.git_version
    assert found["python"] == platform.python_version() and found["numpy"] == numpy.__version__
    assert found["isa"] == torch.backends.cpu.get_cpu_capability()
    assert f"BLAS_INFO={found['blas']}," in torch.__config__.show()


def test_threads_asked_for_by_variables_are_part_of_the_environment(monkeypatch):
    before = environment.digest(environment.environment())
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    found = environment.environment()
    assert found["omp_num_threads"] == "7" and environment.digest(found) != before


def test_with_an_empty_path_the_environment_is_told_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert environment.environment()["compiler"] == ""
    assert environment.commit() == ("unknown", "")
    assert environment.machine()["id"]


def test_a_digest_is_of_canonical_json_and_blind_to_order():
    expected = hashlib.sha256(b'{"a":1,"b":"x"}').hexdigest()[:12]
    assert environment.digest({"b": "x", "a": 1}) == environment.digest({"a": 1, "b": "x"}) == expected


def test_measuring_processes_do_not_load_the_environment():
    code = "import sys, bench.worker, bench.measure; sys.exit(bool({'bench.environment', 'psutil'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=120).returncode == 0


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


@pytest.fixture
def repository(tmp_path):
    """A repository with both packages, committed; returns the folder and a way to run git there."""
    for package in revision.MEASURED:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("x = 1\n")
    (tmp_path / "README.md").write_text("text\n")
    (tmp_path / ".gitignore").write_text("*.pyc\n")

    def git(*words):
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return tmp_path, git


@needs_git
def test_a_clean_source_is_its_commit(repository):
    folder, git = repository
    assert revision.commit(folder) == (git("rev-parse", "HEAD"), "")


@needs_git
def test_each_change_of_the_source_has_a_digest_of_its_own(repository):
    folder, git = repository
    head, seen = git("rev-parse", "HEAD"), {""}
    for text in ("x = 2\n", "x = 3\n"):
        (folder / "bench" / "__init__.py").write_text(text)
        commit, dirty = revision.commit(folder)
        assert commit == head and re.fullmatch("[0-9a-f]{12}", dirty) and dirty not in seen
        seen.add(dirty)
    for text in ("y = 1\n", "y = 2\n"):  # a new file: the same status, other bytes
        (folder / "attention_impls" / "new.py").write_text(text)
        dirty = revision.commit(folder)[1]
        assert dirty not in seen
        seen.add(dirty)
    git("add", ".")
    assert revision.commit(folder)[1] not in {""}


@needs_git
@pytest.mark.parametrize("path", ["README.md", "notes.md", "bench/x.pyc"])
def test_a_change_that_cannot_change_a_number_leaves_the_source_clean(repository, path):
    folder, _ = repository
    (folder / path).write_text("other\n")
    assert revision.commit(folder)[1] == ""


@needs_git
def test_a_copy_inside_another_repository_is_not_that_repositorys_commit(repository):
    folder, _ = repository
    copy = folder / "venv" / "site-packages"
    (copy / "bench").mkdir(parents=True)
    (copy / "bench" / "__init__.py").write_text("")
    (folder / ".gitignore").write_text("venv/\n")
    assert revision.commit(copy) == ("unknown", "")


def test_outside_a_repository_the_commit_is_unknown(tmp_path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").write_text("")
    assert revision.commit(tmp_path) == ("unknown", "")


@needs_git
def test_asking_for_the_commit_writes_nothing(repository):
    folder, _ = repository
    index = Path(folder / ".git" / "index")
    os.utime(folder / "bench" / "__init__.py", (1, 1))  # a time stamp that git would note in its index
    before = index.read_bytes()
    revision.commit(folder)
    assert index.read_bytes() == before
    assert not (folder / ".git" / "index.lock").exists()
