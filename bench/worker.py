"""A child process that measures one group and says what happens, an event a line, on a pipe of its own.

    python -m bench.worker <fd of the event pipe> < job.json

Standard output and error are files of the supervisor's: a kernel that floods or forges them disturbs nothing.
A child is believed only when it says `end`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _die_with_parent(parent: int) -> None:
    """A sleeping child must not outlive a killed supervisor. Linux only; elsewhere the pipe's end is noticed late."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def _be_killed_first() -> None:
    """The kernel's out-of-memory killer takes the child, never the supervisor. Asked for, not relied on."""
    score = Path("/proc/self/oom_score_adj")
    if score.exists() and os.access(score, os.W_OK):
        score.write_text("1000", encoding="ascii")


def limit_memory(allowance: int) -> None:
    """Address space: what torch has mapped by now, plus the allowance. CPU children only: CUDA maps terabytes."""
    if sys.platform != "linux" or allowance <= 0:
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + allowance
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class Emitter:
    """Writes events as JSON lines, each in one write."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __call__(self, event: str, cell: int | None, **fields: Any) -> None:
        """Sends one event about a cell (its index), or about none."""
        line = json.dumps({"e": event, "cell": cell, **fields}, default=_plain) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self.descriptor, data) :]


def _plain(value: Any) -> Any:
    raise TypeError(f"an event cannot carry {type(value).__name__}")


def work(job: Mapping[str, Any], emit: Emitter) -> None:
    """Does one job: kind "right", "time", "growth" or "own", over the cells it names."""
    from attention_impls import catalogue
    from bench import ceilings, growth, measure
    from bench.cell import from_data
    from bench.devices import all_devices
    from bench.protocol import Protocol

    for path in job["plugins"]:
        catalogue.load_plugin(Path(path))
    protocol = Protocol(**job["protocol"])
    cells = [(int(index), from_data(data)) for index, data in job["cells"]]
    device = all_devices()[cells[0][1].device]
    first = cells[0][1]
    facts = device.set_up(first.threads, protocol.clock, tf32=first.workload.dtype == "tf32")
    if device.name == "cpu":
        limit_memory(protocol.memory_limit)
    emit("ready", None, facts=facts)
    if job["kind"] == "right":
        measure.right_and_memory(cells, protocol, emit)
    elif job["kind"] == "time":
        measure.timed(cells, job["reference"], protocol, emit)
        if job.get("ceilings"):
            emit("ceilings", None, facts=ceilings.measured(device, first.workload.dtype, str(facts.get("gpu", ""))))
    elif job["kind"] == "growth":
        growth.measured(cells, growth.Limits(**job["limits"]), emit)
    else:
        measure.own(cells[0], job["metric"], protocol, emit)
    emit("end", None)


def protect(parent: int) -> None:
    """Protects the machine and the supervisor from what is about to run."""
    _die_with_parent(parent)
    _be_killed_first()


def main() -> None:
    """Reads the job, protects the machine from it, does it."""
    job = json.load(sys.stdin)
    protect(job["parent"])
    work(job, Emitter(int(sys.argv[1])))


if __name__ == "__main__":
    main()
