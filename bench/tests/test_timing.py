"""The time phase, with a made-up device whose steps sleep in numbers."""

import math
import random

import pytest

from bench.devices.cpu import Cpu
from bench.protocol import Protocol
from bench.timing import Contender, half_width, precision, rounds, warm_up


class MadeUp:
    """A device whose clock advances by what a step costs; `overhead` passes outside the timed blocks."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def clock(self):
        self.now += 1e-6
        return self.now

    def synchronise(self):
        pass

    def block(self, step, inner):
        start = self.now
        for _ in range(inner):
            step()
        self.log.append(inner)
        return self.now - start


def contender(device, index, cost, jitter=0.0, seed=0):
    noise = random.Random(seed)

    def step():
        device.now += cost * (1 + jitter * noise.random())

    return Contender(index, None, (step, step))


def taken_by(device, contenders, reference, protocol):
    taken, order = [], []
    stopped = rounds(
        device, contenders, reference, protocol, order.append, lambda i, s: taken.append((i, s)), clock=device.clock
    )
    return stopped, taken, order


def test_a_block_lasts_as_long_as_the_protocol_says():
    device = MadeUp()
    for cost in (1e-7, 3e-5, 0.9e-3, 2e-3):
        c = contender(device, 0, cost)
        warm_up(device, c, Protocol(), device.clock)
        assert c.inner * cost >= 1e-3
        assert c.inner == 1 or c.inner * cost < 3e-3


def test_a_step_that_costs_nothing_is_bounded():
    device = MadeUp()
    c = contender(device, 0, 0.0)
    warm_up(device, c, Protocol(), device.clock)
    assert c.inner <= 2**20


def test_warm_up_takes_its_time_and_its_calls():
    device = MadeUp()
    calls = []
    c = Contender(0, None, (lambda: calls.append(device.__setattr__("now", device.now + 0.06)),))
    warm_up(device, c, Protocol(warm_calls=3, warm_s=0.1), device.clock)
    assert len(calls) >= 3


def test_every_contender_runs_once_a_round_and_the_order_changes():
    device = MadeUp()
    stopped, taken, order = taken_by(
        device, [contender(device, i, 1e-3, 0.5, i) for i in range(4)], 0, Protocol(max_rounds=20, precision=0.0)
    )
    assert stopped.reason == "rounds"
    by_round = [order[i : i + 4] for i in range(0, len(order), 4)]
    assert all(sorted(r) == [0, 1, 2, 3] for r in by_round)
    assert len({tuple(r) for r in by_round}) > 5
    assert order == [i for i, _ in taken]


def test_both_input_sets_are_timed_in_turn():
    device, seen = MadeUp(), []

    def step(which):
        def go():
            seen.append(which)
            device.now += 1e-3

        return go

    c = Contender(0, None, (step(0), step(1)))
    taken_by(device, [c], None, Protocol(max_rounds=6))
    assert seen == [0, 0, 1, 1] * 3  # a warm call and a timed one each


def test_it_stops_when_the_ratio_is_known():
    device = MadeUp()
    steady = [contender(device, 0, 1e-3), contender(device, 1, 2e-3)]
    stopped, taken, _ = taken_by(device, steady, 0, Protocol(min_rounds=15))
    assert (stopped.reason, stopped.rounds) == ("precise", 15)
    assert {round(s.seconds, 6) for i, s in taken if i == 1} == {0.002}


def test_it_stops_at_the_time_budget_but_not_before_five_rounds():
    device = MadeUp()
    noisy = [contender(device, i, 0.1, 5.0, i) for i in range(2)]
    stopped, _, _ = taken_by(device, noisy, 0, Protocol(group_budget_s=3.0, precision=1e-6))
    assert stopped.reason == "time"
    assert stopped.rounds >= 5


def test_a_round_longer_than_the_budget_is_slow_and_ends_after_three():
    device = MadeUp()
    stopped, _, _ = taken_by(device, [contender(device, 0, 50.0)], None, Protocol(group_budget_s=10.0))
    assert (stopped.reason, stopped.rounds) == ("slow", 3)


def test_a_cost_that_jumps_after_calibration_still_honours_the_budget():
    device = MadeUp()
    state = {"calls": 0}

    def step():
        state["calls"] += 1
        device.now += 1e-4 if state["calls"] < 1200 else 1e-2

    c = Contender(0, None, (step,))
    warm_up(device, c, Protocol(), device.clock)
    start = device.now
    stopped, _, _ = taken_by(device, [c], None, Protocol(group_budget_s=2.0, precision=-1.0))
    assert stopped.reason == "time"
    assert device.now - start < 4.0


@pytest.mark.parametrize("n", [6, 15, 30, 100])
def test_the_interval_covers_the_median_as_often_as_it_says(n):
    noise = random.Random(n)
    hits = 0
    for _ in range(400):
        values = [1.0 + noise.gauss(0, 0.01) for _ in range(n)]
        ordered = sorted(values)
        middle = ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2
        hits += abs(middle - 1.0) <= 2 * half_width(values)
    assert hits / 400 > 0.93


def test_few_or_impossible_values_have_no_precision():
    assert half_width([1.0] * 5) == math.inf
    assert half_width([0.0] * 20) == math.inf
    assert half_width([2.0] * 20) == 0.0


def test_precision_is_that_of_the_worst_ratio_round_by_round():
    drift = [1.0 + 0.1 * i for i in range(30)]
    both = {0: drift, 1: [2 * d for d in drift]}
    assert precision(both, 0) == pytest.approx(0.0)
    assert precision(both, None) > 0.1


def test_the_cpu_takes_the_seconds_of_the_clock_that_was_asked_for(monkeypatch):
    counts = {"perf_counter": iter((1.0, 5.0)), "thread_time": iter((2.0, 2.5))}
    for name, read in counts.items():
        monkeypatch.setattr(f"bench.devices.cpu.time.{name}", lambda read=read: next(read))
    device = Cpu()
    assert device.block(lambda: None, 1) == 4.0
    device.clock = "thread"
    assert device.block(lambda: None, 1) == 0.5


@pytest.mark.parametrize(("threads", "clock", "sentence"), [(1, "sun", "known: wall, thread"), (2, "thread", "2 thr")])
def test_a_clock_that_the_cpu_has_not_is_refused(threads, clock, sentence):
    with pytest.raises(ValueError, match=sentence):
        Cpu().set_up(threads, clock)
