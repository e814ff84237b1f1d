"""The CPU: wall clock (or this thread's own), and peak memory from the allocator's own events on the calling thread."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from bench.device import Device, Held, Phases
from bench.garbage import uncollected
from bench.record import Scalar

_FORWARD, _BACKWARD, _OPTIMISE = "attnbench.forward", "attnbench.backward", "attnbench.optimise"
MANY_EVENTS = 200_000  # more than this in one session and the profiler's own memory decides what is seen


class Cpu(Device):
    """This machine's processor. One thread, pinned to one core, is what comparisons rest on."""

    name = "cpu"
    clocks = ("wall", "thread")
    caches = "warm"
    clock = "wall"

    def missing(self) -> str | None:
        """The CPU is always there."""
        return None

    def set_up(self, threads: int, clock: str, *, tf32: bool = False) -> dict[str, Scalar]:
        """Threads, affinity and number formats of this process. The clock "thread" is for one thread only.

        Raises ValueError for a clock that there is not, or that would not see all threads.
        """
        self.clock = clock or self.clocks[0]
        if self.clock not in self.clocks:
            raise ValueError(f"no CPU clock called {clock!r}; known: {', '.join(self.clocks)}")
        if self.clock == "thread" and threads > 1:
            raise ValueError(f'the clock "thread" sees the calling thread only; use "wall" with {threads} threads')
        torch.set_num_threads(threads)
        if torch.get_num_interop_threads() != 1:
            torch.set_num_interop_threads(1)
        torch.set_float32_matmul_precision("highest")
        isa = torch.backends.cpu.get_cpu_capability()
        return {"clock": self.clock, "caches": self.caches, "cores": pin(threads), "isa": isa}

    def synchronise(self) -> None:
        """Calls return when they are done."""

    def block(self, step: Callable[[], Any], inner: int) -> float:
        """Seconds for `inner` calls: by the wall, or of this thread alone, whoever else wants the core meanwhile."""
        clock = time.perf_counter if self.clock == "wall" else time.thread_time
        calls = range(inner)
        start = clock()
        for _ in calls:
            step()
        return clock() - start

    def memory(self, phases: Phases) -> Held:
        """Exact bytes by the running sum of allocator events; no balance at the end, no number.

        The sum over the session must equal the bytes of the output and gradients still alive: an
        implementation that allocates in a thread of its own breaks that and is reported as not measurable.
        """
        _session(phases)  # the first session of a process is slow, and libraries allocate lazily
        events, alive = _session(phases)
        if len(events) > MANY_EVENTS:
            return Held(why_missing=f"{len(events)} allocator events in one step: more than can be followed exactly")
        return _account(events, alive)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """The allocator's refusal, or Python's."""
        return isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        )

    def recover(self) -> None:
        """Nothing is kept between steps."""


def pin(threads: int) -> str:
    """Pins this process to as many of its allowed cores as it has threads, from the last one down; says which."""
    if sys.platform != "linux":
        return "not pinned: only Linux can"
    allowed = sorted(os.sched_getaffinity(0))
    chosen = allowed[-threads:]
    os.sched_setaffinity(0, chosen)
    return ",".join(map(str, chosen))


def _session(phases: Phases) -> tuple[list[tuple[str, int]], int]:
    """One profiled step: marks and allocator events in order, and the bytes alive at the end."""
    phases.before()
    with uncollected(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
        with record_function(_FORWARD):
            out = phases.forward()
        gradients: tuple[Tensor, ...] = ()
        if phases.backward is not None:
            with record_function(_BACKWARD):
                gradients = phases.backward(out)
        if phases.optimise is not None:
            with record_function(_OPTIMISE):
                phases.optimise()
        gc.collect()  # what the step left in cycles was held to the end, and is seen to go
    return _in_order(session), _bytes_of((out, *gradients))


def _in_order(session: Any) -> list[tuple[str, int]]:
    """("memory", bytes) for each allocation and free, ("mark name", 0) where a phase begins."""
    found: list[tuple[int, int, str, int]] = []
    for at, event in enumerate(session.profiler.kineto_results.events()):
        if event.name() == "[memory]":
            found.append((event.start_ns(), at, "memory", event.nbytes()))
        elif event.name() in (_FORWARD, _BACKWARD, _OPTIMISE):
            found.append((event.start_ns(), -1, event.name(), 0))
    return [(name, size) for _, _, name, size in sorted(found)]


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind tensors, each once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _account(events: list[tuple[str, int]], alive: int) -> Held:
    total = peak = 0
    peaks: dict[str, int] = {}
    begins: dict[str, int] = {}
    phase = ""
    for name, size in events:
        if name != "memory":
            phase, peak, begins[name] = name, total, total
        total += size
        peak = max(peak, total)
        if phase:
            peaks[phase] = peak
    if total != alive:
        return Held(
            why_missing=f"not measurable: {total} bytes seen to stay, {alive} bytes of results are alive; "
            "something is allocated or freed where the allocator's events of this thread do not reach"
        )
    most = peaks.get(_OPTIMISE)
    return Held(
        peak_forward=peaks.get(_FORWARD, 0),
        held=begins.get(_BACKWARD, total),
        peak_backward=peaks.get(_BACKWARD),
        peak_optimise=most,
        scratch=None if most is None else most - begins[_OPTIMISE],
    )


DEVICE = Cpu()
