"""What this machine can measure, and what disturbs it: a check a question, each answer with advice."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attention_impls.needs import CPP_COMPILER, package
from bench import linux
from bench.devices import all_devices
from bench.environment import disturbances, machine, stolen_share
from bench.errors import CannotDo
from bench.lock import device_lock, lock_folder
from bench.protocol import heap_policy

WATCHED_S = 1.0  # a shorter look at /proc/stat has too few ticks of 10 ms
STOLEN_TOO_MUCH = 0.02  # of CPU time; above it separate runs of identical code differ by tens of percent
BUSY_LOAD = 0.5  # per CPU that this process may use, beyond what it takes itself


@dataclass(frozen=True)
class Finding:
    """One answer. `state`: ok, limited (works, with less), absent (cannot), disturbed (works, but numbers suffer)."""

    topic: str
    state: str
    text: str
    advice: str = ""


def examine() -> list[Finding]:
    """Every check in order: what can be measured first, then what disturbs."""
    return [finding for check in CHECKS for finding in check()]


def _machine() -> list[Finding]:
    found = machine()
    return [Finding("machine", "ok", f"{found['id']}: {found['cpu']}, {found['cpus']} CPUs, {found['memory_gib']} GiB")]


def _platform() -> list[Finding]:
    if os.name != "posix":
        return [
            Finding("platform", "absent", "Windows reads and compares stored runs, but cannot measure", "use WSL 2")
        ]
    if sys.platform != "linux":
        text = "no memory limits, no pinned heap: numbers are shown, never gated"
        return [Finding("platform", "limited", text, "gate on Linux")]
    return [Finding("platform", "ok", f"Linux {platform.release()}, {platform.machine()}")]


def _devices() -> list[Finding]:
    found = []
    for device in all_devices().values():
        why = device.missing()
        units = "; ".join(device.units())
        found.append(Finding(f"device {device.name}", "absent" if why else "ok", why or units or "here"))
    return found


def _compiler() -> list[Finding]:
    why = CPP_COMPILER.missing()
    if why:
        text = "compiled subjects and FlexAttention on CPU are absent"
        return [Finding("C++ compiler", "absent", text, CPP_COMPILER.install)]
    flex = package("torch.nn.attention.flex_attention", "'torch>=2.11'").missing()
    attention = Finding("FlexAttention", "absent" if flex else "ok", flex or "compiled; forward only on CPU")
    return [Finding("C++ compiler", "ok", "found: torch.compile works on CPU"), attention]


def _heap() -> list[Finding]:
    if heap_policy() == "pinned":
        return [Finding("heap", "ok", "glibc: the heap of a timing child is pinned")]
    text = "the C library's heap cannot be pinned: a step's time depends on what ran before it, by up to 2×"
    return [Finding("heap", "limited", text, "gate only where glibc is; such runs are marked heap=system")]


def _children() -> list[Finding]:
    on_linux = sys.platform == "linux"
    death = Finding("orphans", "ok", "children die with the run (prctl)")
    if not on_linux:
        text = "no prctl: a child notices the end of a killed run at its next event"
        death = Finding("orphans", "limited", text, "after kill -9, look for left python -m bench.worker")
    limit = Finding("memory limit", "ok", "a child's address space is limited to what is free (CPU only)")
    if not on_linux:
        limit = Finding("memory limit", "limited", "no limit: a subject without end may take the machine down")
    counter = linux.out_of_memory_counter()
    told = Finding("out of memory", "ok", f"the kernel's kills are counted in {counter}")
    if not counter:
        text = "no counter: a kill for memory is recorded as killed, not as out_of_memory"
        told = Finding("out of memory", "limited", text)
    return [death, limit, told]


def _profiler() -> list[Finding]:
    scripts = Path(sysconfig.get_path("scripts"))
    if not shutil.which("py-spy", path=f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}"):
        return [Finding("py-spy", "absent", "stacks cannot be sampled", "pip install py-spy")]
    if sys.platform == "linux" and os.geteuid() and linux.debugger_scope() in ("2", "3"):
        advice = "sudo sysctl kernel.yama.ptrace_scope=1"
        return [Finding("py-spy", "absent", "this kernel lets nobody but root look into a process", advice)]
    return [Finding("py-spy", "ok", "may look into its own children")]


def _busy() -> list[Finding]:
    before = disturbances()
    time.sleep(WATCHED_S)
    after = disturbances()
    cpus = int(machine()["cpus"] or 1)
    stolen, load = stolen_share(before, after), after["load"]
    found = []
    if not after["cpu_s"]:
        found.append(Finding("stolen time", "limited", "not told on this system"))
    else:
        state = "disturbed" if stolen > STOLEN_TOO_MUCH else "ok"
        advice = "another tenant has the core: measure later, or on a machine of its own" if state != "ok" else ""
        found.append(Finding("stolen time", state, f"{stolen:.1%} of CPU time went to others", advice))
    if load is not None:
        state = "disturbed" if float(load) > BUSY_LOAD * cpus else "ok"
        advice = "end what else runs; a core is needed for the run and one for its supervisor" if state != "ok" else ""
        found.append(Finding("load", state, f"{float(load):.2f} over the last minute, on {cpus} CPUs", advice))
    return found


def _clock() -> list[Finding]:
    governor = linux.governor()
    if not governor:
        return [Finding("clock", "limited", "cannot be told or fixed here (usual in a VM)")]
    if governor == "performance":
        return [Finding("clock", "ok", "governor performance")]
    advice = "sudo cpupower frequency-set -g performance"
    return [Finding("clock", "disturbed", f"governor {governor}: the clock moves with the load", advice)]


def _pages() -> list[Finding]:
    pages = linux.huge_pages()
    if pages != "always":
        return [Finding("huge pages", "ok", pages or "not told on this system")]
    advice = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    return [Finding("huge pages", "disturbed", "always: a step's time depends on how memory lies", advice)]


def _cores() -> list[Finding]:
    if int(machine()["cpus"] or 1) > 1:
        return []
    return [Finding("cores", "disturbed", "one CPU for the run and its supervisor", "give this process two CPUs")]


def _other_run() -> list[Finding]:
    if os.name != "posix" or not lock_folder().is_dir():
        return [Finding("other runs", "ok", "none is measuring")]
    found = []
    for lock in sorted(lock_folder().glob("*.lock")):
        try:
            with device_lock(lock.stem):
                continue
        except CannotDo as error:
            found.append(Finding("other runs", "disturbed", str(error), "wait for it"))
    return found or [Finding("other runs", "ok", "none is measuring")]


CHECKS: tuple[Callable[[], list[Finding]], ...] = (
    _machine,
    _platform,
    _devices,
    _compiler,
    _heap,
    _children,
    _profiler,
    _busy,
    _clock,
    _pages,
    _cores,
    _other_run,
)
