"""What Linux says of itself under /proc and /sys. Where a file is missing the answer is empty, never an error:
macOS has none of them, and containers hide some."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv", "run/systemd/container", "var/run/secrets/kubernetes.io")
_UNLIMITED = 2**60  # version 1 says "no limit" by a number near 2^63


def text(path: str) -> str:
    """The stripped text of a file below the root; "" where it is not there or may not be read."""
    try:
        return (ROOT / path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def cpuinfo() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo, names in lower case."""
    first = text("proc/cpuinfo").split("\n\n", maxsplit=1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}


def memory_bytes() -> int | None:
    """Memory of the machine, or the cgroup's limit where that is lower."""
    found = [int(line.split()[1]) * 1024 for line in text("proc/meminfo").splitlines() if line.startswith("MemTotal:")]
    found += [int(word) for word in _limits("memory", "memory.max", "memory.limit_in_bytes") if word.isdigit()]
    return min((value for value in found if value < _UNLIMITED), default=None)


def cpu_quota() -> float | None:
    """How many CPUs the cgroup may use at once; None where nothing limits it."""
    quotas = []
    for word in _limits("cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = word.partition(" ")
        if quota.isdigit():
            quotas.append(int(quota) / int(period or text("sys/fs/cgroup/cpu/cpu.cfs_period_us") or 100_000))
    return min(quotas, default=None)


def _limits(controller: str, unified: str, legacy: str) -> Iterator[str]:
    """The texts of a limit in this process's cgroup and in all above it, of both versions of cgroups."""
    for line in text("proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", maxsplit=2)
        if not controllers:
            yield from _upwards("sys/fs/cgroup", path, unified)
        elif controller in controllers.split(","):
            yield from _upwards(f"sys/fs/cgroup/{controller}", path, legacy)


def _upwards(mount: str, path: str, file: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        found = text("/".join([mount, *parts[:depth], file]))
        if found:
            yield found


def out_of_memory_counter() -> str:
    """Where the kernel counts what it killed for memory: a file's path, or "" where there is no such counter."""
    files = ("sys/fs/cgroup/memory.events", "proc/vmstat")
    return next((f"/{file}" for file in files if "oom_kill" in text(file)), "")


def cpu_seconds() -> tuple[float, float]:
    """(stolen, all) CPU seconds since the machine started, from /proc/stat; zeros where there is none.

    Stolen: this machine had work, and the hypervisor gave the core to another one.
    """
    words = text("proc/stat").split("\n", maxsplit=1)[0].split()[1:]
    if len(words) < 8:
        return 0.0, 0.0
    ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in words[:8]]  # guest time is inside user time
    return ticks[7], sum(ticks)


def mhz() -> float | None:
    """The mean clock of the processors, as /proc/cpuinfo tells it now."""
    lines = (line.partition(":") for line in text("proc/cpuinfo").splitlines())
    found = [float(value) for name, _, value in lines if name.strip().lower() == "cpu mhz"]
    return sum(found) / len(found) if found else None


def governor() -> str:
    """How the kernel chooses the clock ("performance", "powersave", …); "" where it cannot, as in most VMs."""
    return text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def huge_pages() -> str:
    """When memory comes in pages of 2 MiB: "always", "madvise" or "never"; "" where it is not told."""
    words = text("sys/kernel/mm/transparent_hugepage/enabled").split()
    return next((word.strip("[]") for word in words if word.startswith("[")), "")


def in_container() -> bool:
    """True where a container's marks are found."""
    return any((ROOT / mark).exists() for mark in _CONTAINER_MARKS)


def gpu_driver() -> str:
    """The version of NVIDIA's kernel driver; "" where there is none."""
    words = text("proc/driver/nvidia/version").split("\n", maxsplit=1)[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def debugger_scope() -> str:
    """The kernel's rule on who may look into a process: "0" one's own, "1" one's children, …; "" where none is set."""
    return text("proc/sys/kernel/yama/ptrace_scope")
