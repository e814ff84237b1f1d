"""The CUDA device's order of calls, held with a stand-in: swapping any two makes a test fail."""

import types

import pytest
import torch

from bench.device import Phases
from bench.devices.cuda import Cuda


class StandIn:
    """Records what is asked of torch.cuda, in order; a made-up allocator answers for memory."""

    def __init__(self):
        self.log = []
        self.allocated, self.peak = 1000, 1000

    def is_available(self):
        return True

    def synchronize(self):
        self.log.append("synchronise")

    def empty_cache(self):
        self.log.append("empty_cache")

    def reset_peak_memory_stats(self):
        self.log.append("reset")
        self.peak = self.allocated

    def memory_allocated(self):
        self.log.append("allocated")
        return self.allocated

    def max_memory_allocated(self):
        self.log.append("peak")
        return self.peak

    def take(self, size):
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def Event(self, enable_timing):
        assert enable_timing
        log = self.log

        def elapsed(end):
            log.append("read")
            return 2.0

        return types.SimpleNamespace(record=lambda: log.append("record"), elapsed_time=elapsed)

    def Stream(self):
        return types.SimpleNamespace(wait_stream=lambda s: self.log.append("side waits"))

    def current_stream(self):
        return types.SimpleNamespace(wait_stream=lambda s: self.log.append("current waits"))

    def stream(self, _):
        return _context(self.log, "side stream")

    def CUDAGraph(self):
        return types.SimpleNamespace(replay=lambda: self.log.append("replay"))

    def graph(self, _):
        return _context(self.log, "capture")


class _context:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def __enter__(self):
        self.log.append(f"{self.name} begins")

    def __exit__(self, *_):
        self.log.append(f"{self.name} ends")


@pytest.fixture
def cuda():
    api = StandIn()
    device = Cuda(api)
    device.flushed = types.SimpleNamespace(zero_=lambda: api.log.append("flush"))
    return device


def step(device):
    return lambda: device.api.log.append("step")


def test_events_flush_outside_the_pair_and_read_after_one_synchronisation(cuda):
    assert cuda.block(step(cuda), 2) == pytest.approx(0.004)
    once = ["flush", "record", "step", "record"]
    assert cuda.api.log == [*once, *once, "synchronise", "read", "read"]


def test_a_graph_is_warmed_on_a_side_stream_captured_once_and_replayed_inside_the_pair(cuda):
    cuda.clock = "graph"
    work = step(cuda)
    cuda.block(work, 1)
    assert cuda.api.log == [
        "side waits",
        "side stream begins",
        "step",
        "step",
        "step",
        "side stream ends",
        "current waits",
        "capture begins",
        "step",
        "capture ends",
        "flush",
        "record",
        "replay",
        "record",
        "synchronise",
        "read",
    ]
    cuda.api.log.clear()
    cuda.block(work, 1)
    assert cuda.api.log == ["flush", "record", "replay", "record", "synchronise", "read"]


def test_the_wall_clock_starts_after_the_flush_is_done_and_stops_after_the_step_is(cuda):
    cuda.clock = "wall"
    cuda.block(step(cuda), 1)
    assert cuda.api.log == ["flush", "synchronise", "step", "synchronise"]


def test_memory_warms_up_then_resets_and_counts_above_the_base(cuda):
    sizes = iter([500, 100])  # the first call of a library takes a workspace that stays

    def forward():
        cuda.api.log.append("forward")
        cuda.api.take(next(sizes))
        return "out"

    def backward(out):
        cuda.api.log.append("backward")
        cuda.api.take(30)
        cuda.api.allocated -= 30
        return ("gradient",)

    held = cuda.memory(Phases(forward, backward))
    assert (held.peak_forward, held.held, held.peak_backward) == (100, 100, 130)
    assert cuda.api.log == [
        "forward",
        "backward",
        "synchronise",
        "empty_cache",
        "reset",
        "allocated",
        "forward",
        "synchronise",
        "peak",
        "allocated",
        "reset",
        "backward",
        "synchronise",
        "peak",
        "allocated",
        "reset",
    ]


def test_the_optimiser_s_peak_and_scratch_are_counted_from_the_gradients_on(cuda):
    state = {"gradients": 0}

    def before():
        cuda.api.log.append("before")
        cuda.api.allocated -= state["gradients"]
        state["gradients"] = 0

    def backward(out):
        cuda.api.take(70)  # of which 40 stay
        cuda.api.allocated -= 30
        state["gradients"] = 40
        return ("gradient",)

    def optimise():
        cuda.api.log.append("optimise")
        cuda.api.take(25)
        cuda.api.allocated -= 25

    held = cuda.memory(Phases(lambda: "loss", backward, optimise, before))
    assert (held.peak_forward, held.held, held.peak_backward) == (0, 0, 70)
    assert (held.peak_optimise, held.scratch) == (65, 25)
    at = [i for i, what in enumerate(cuda.api.log) if what == "before"][1]
    assert cuda.api.log[at + 1] == "empty_cache"  # gradients of the warm-up are gone before the base is read
    measured = cuda.api.log[cuda.api.log.index("optimise", at) - 1 :]
    assert measured == ["reset", "optimise", "synchronise", "peak", "allocated", "reset"]


def test_out_of_memory_is_told_from_other_errors(cuda):
    assert cuda.is_out_of_memory(torch.cuda.OutOfMemoryError("x"))
    assert not cuda.is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    cuda.recover()
    assert cuda.api.log == ["empty_cache"]


def test_an_unknown_clock_is_refused(cuda):
    with pytest.raises(ValueError, match="known: events, graph, wall"):
        cuda.set_up(1, "sundial")
