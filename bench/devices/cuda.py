"""NVIDIA GPUs: event, graph and wall clocks, caches flushed before each call, peak from the caching allocator.

Has not run on a GPU in this project's own tests: they hold the order of calls with a stand-in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.device import Device, Held, Phases
from bench.garbage import uncollected
from bench.record import Scalar

GRAPH_WARM_CALLS = 3  # on a side stream before capture, as torch asks for
FALLBACK_L2 = 64 * 2**20  # bytes, where the device does not say how large its L2 is


class Cuda(Device):
    """The current CUDA device. `api` is torch.cuda, or a stand-in that records the order of calls."""

    name = "cuda"
    clocks: tuple[str, ...] = ("events", "graph", "wall")
    caches = "cold"

    def __init__(self, api: Any = torch.cuda) -> None:
        self.api = api
        self.clock = self.clocks[0]
        self.flushed: Tensor | None = None
        self.graphs: dict[int, tuple[Callable[[], Any], Any]] = {}

    def missing(self) -> str | None:
        """A sentence where torch finds no GPU."""
        if self.api.is_available():
            return None
        return "no CUDA device is visible to torch; install a CUDA build of torch on a machine with a GPU"

    def units(self) -> tuple[str, ...]:
        """Name and GiB of every GPU that torch may use."""
        found = (self.api.get_device_properties(index) for index in range(self.api.device_count()))
        return tuple(f"{p.name} {round(p.total_memory / 2**30)}g" for p in found)

    def set_up(self, threads: int, clock: str, *, tf32: bool = False) -> dict[str, Scalar]:
        """Number formats, the buffer that flushes the L2, and which GPU this is."""
        self.clock = clock or self.clocks[0]
        if self.clock not in self.clocks:
            raise ValueError(f"no CUDA clock called {clock!r}; known: {', '.join(self.clocks)}")
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        properties = self.api.get_device_properties(0)
        size = 2 * (getattr(properties, "L2_cache_size", 0) or FALLBACK_L2)
        self.flushed = torch.empty(size, dtype=torch.int8, device="cuda")
        return {
            "clock": self.clock,
            "caches": self.caches,
            "gpu": properties.name,
            "gpu_uuid": str(getattr(properties, "uuid", "unknown")),
        }

    def synchronise(self) -> None:
        """Waits for the device."""
        self.api.synchronize()

    def flush(self) -> None:
        """Overwrites a buffer twice the size of the L2, on the current stream, outside what is timed."""
        if self.flushed is not None:
            self.flushed.zero_()

    def block(self, step: Callable[[], Any], inner: int) -> float:
        """Seconds of `inner` calls, each after a flush that is not counted, with one synchronisation at the end."""
        if self.clock == "wall":
            return self._wall(step, inner)
        work = self._captured(step) if self.clock == "graph" else step
        pairs = [(self.api.Event(enable_timing=True), self.api.Event(enable_timing=True)) for _ in range(inner)]
        for start, end in pairs:
            self.flush()
            start.record()
            work()
            end.record()
        self.api.synchronize()
        return float(sum(start.elapsed_time(end) for start, end in pairs)) / 1e3

    def _wall(self, step: Callable[[], Any], inner: int) -> float:
        total = 0.0
        for _ in range(inner):
            self.flush()
            self.api.synchronize()
            start = time.perf_counter()
            step()
            self.api.synchronize()
            total += time.perf_counter() - start
        return total

    def _captured(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """A CUDA graph of one step, captured once; its private pool is why memory is measured without graphs."""
        kept = self.graphs.get(id(step))
        if kept is not None and kept[0] is step:
            return kept[1].replay  # type: ignore[no-any-return]
        side = self.api.Stream()
        side.wait_stream(self.api.current_stream())
        with self.api.stream(side):
            for _ in range(GRAPH_WARM_CALLS):
                step()
        self.api.current_stream().wait_stream(side)
        graph = self.api.CUDAGraph()
        with self.api.graph(graph):
            step()
        self.graphs[id(step)] = (step, graph)
        return graph.replay  # type: ignore[no-any-return]

    def memory(self, phases: Phases) -> Held:
        """Peaks above what is allocated before the step, each counter reset after the warm-up."""
        self._warm(phases)
        phases.before()
        with uncollected():
            return self._counted(phases)

    def _counted(self, phases: Phases) -> Held:
        base = self._reset()
        out = phases.forward()
        peak_forward, held = self._since(base)
        if phases.backward is None:
            return Held(peak_forward=peak_forward, held=held)
        gradients = phases.backward(out)
        peak_backward, before = self._since(base)
        if phases.optimise is None:
            return Held(peak_forward=peak_forward, held=held, peak_backward=peak_backward)
        phases.optimise()
        peak_optimise, _ = self._since(base)
        del gradients
        return Held(peak_forward, held, peak_backward, peak_optimise, peak_optimise - before)

    def _since(self, base: int) -> tuple[int, int]:
        """(the most allocated since the last time this was asked, what is allocated now), both above `base`."""
        self.api.synchronize()
        peak, now = self.api.max_memory_allocated() - base, self.api.memory_allocated() - base
        self.api.reset_peak_memory_stats()
        return int(peak), int(now)

    def _warm(self, phases: Phases) -> None:
        """One step, so that library workspaces and lazy loading are in the base and not in the peak."""
        phases.before()
        out = phases.forward()
        if phases.backward is not None:
            phases.backward(out)
        if phases.optimise is not None:
            phases.optimise()
        self.api.synchronize()

    def _reset(self) -> int:
        self.api.empty_cache()
        self.api.reset_peak_memory_stats()
        return int(self.api.memory_allocated())

    def is_out_of_memory(self, error: BaseException) -> bool:
        """The caching allocator's refusal."""
        return isinstance(error, torch.cuda.OutOfMemoryError)

    def recover(self) -> None:
        """Gives the blocks of a failed step back to the device."""
        self.graphs.clear()
        self.api.empty_cache()


DEVICE = Cuda()
