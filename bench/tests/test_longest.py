"""The search for the longest sequence, on costs of which the answer is known, and on a kernel's bytes on paper."""

import math

import pytest

from attention_impls import catalogue
from bench.cell import parse_id
from bench.longest import MOST, STEP, Probe, longest
from bench.metric import Asked, all_metrics
from bench.protocol import Protocol

MIB = 2**20
COSTS = {
    "square": lambda n: 12.0 * n * n,
    "square and line": lambda n: 4.0 * n * n + 3000.0 * n + 5e5,
    "line": lambda n: 9000.0 * n + 1e5,
    "power 1.5": lambda n: 100.0 * n**1.5,
    "steps": lambda n: 4096.0 * n + 2**20 * math.ceil(n / 2000),
    "two phases": lambda n: max(30000.0 * n, 8.0 * n * n),
}


def right(cost, limit):
    """By trying every length."""
    n = 0
    while cost(n + STEP) <= limit:
        n += STEP
    return n


def run(cost, limit, seconds=lambda n: 1e-6 * n):
    tried = []

    def measure(n):
        tried.append(n)
        return Probe(n, cost(n), seconds(n))

    found = longest(measure, limit)
    assert len(tried) == len(set(tried)) == len(found.probes) <= MOST
    assert all(n % STEP == 0 for n in tried)
    return found


@pytest.mark.parametrize("limit", [8 * MIB, 64 * MIB, 300 * MIB])
@pytest.mark.parametrize("name", COSTS)
def test_it_is_the_longest_that_fits_and_verified_when_it_says_so(name, limit):
    cost = COSTS[name]
    found, exact = run(cost, limit), right(cost, limit)
    if found.verified:
        assert found.n == exact
    else:
        assert abs(found.n - exact) <= max(2 * STEP, 0.02 * exact), found.why
    assert found.verified or name in ("steps", "power 1.5", "two phases") or limit == 300 * MIB


def test_where_a_probe_would_take_too_long_the_rest_is_predicted_and_says_so():
    found = run(COSTS["square"], 2**31, seconds=lambda n: 9e-7 * n * n)  # 0.9 s at 1,024, 3.8 s at 2,048
    assert not found.verified and max(p.n for p in found.probes) == 2048
    assert "would take about" in found.why and "measured up to" in found.why
    assert abs(found.n - right(COSTS["square"], 2**31)) <= 2 * STEP


def test_a_slow_first_probe_is_followed_by_a_shorter_one_that_shows_the_growth():
    found = run(lambda n: 13000.0 * n, 64 * MIB, seconds=lambda n: 3.0 * n / 1024)
    assert [p.n for p in found.probes] == [1024, 512] and not found.verified
    assert abs(found.n - right(lambda n: 13000.0 * n, 64 * MIB)) <= STEP


def test_where_not_even_the_shortest_fits_it_is_none():
    found = run(lambda n: 1e9, 64 * MIB)
    assert (found.n, found.verified) == (0, True)


def test_a_probe_that_had_no_room_bounds_the_length_and_bends_no_curve():
    cost = COSTS["square"]
    found = run(lambda n: cost(n) if n < 4000 else math.inf, 2**40)
    assert (found.n, found.verified) == (3968, True)


def test_a_concave_scratch_predicts_no_millions():
    """A scratch that grows by ever smaller steps: a parabola through it would never reach the limit."""
    found = run(lambda n: 1e6 * math.log2(n), 64 * MIB, seconds=lambda n: 1e-3 * n)
    assert not found.verified
    assert found.n < 2**24


@pytest.mark.parametrize("limit", [16, 64])
def test_naive_s_longest_is_what_its_formula_says(limit):
    """Two matrices of scores and three scalars: 8·H·n² + 12 within the limit."""
    cell = parse_id("softmax.naive/b1-h2-n256-d32-f32-full/fwd/cpu1")
    found = all_metrics()["longest"].ask(Asked(cell, Protocol(max_memory=limit * MIB)))
    exact = right(lambda n: 8.0 * 2 * n * n + 12, limit * MIB)
    assert (found.reading.values, found.facts["longest.verified"]) == ((float(exact),), True)
    peak = catalogue.find("softmax.naive").inner.footprint.peak
    assert peak(parse_id(f"softmax.naive/b1-h2-n{exact}-d32-f32-full/fwd/cpu1").workload) <= limit * MIB


def test_what_takes_one_length_only_is_told_apart_from_what_fits():
    cell = parse_id("softmax.naive/b1-h2-n16-m256-d32-f32-full/fwd/cpu1")
    found = all_metrics()["longest"].ask(Asked(cell, Protocol(max_memory=MIB)))
    assert not found.reading.values and "as many queries as keys" in found.reading.why_missing
