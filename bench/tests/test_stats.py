"""Statistics against numpy and scipy, and every edge against its stated answer."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from bench import stats

finite = st.floats(-1e9, 1e9)
positive = st.floats(1e-9, 1e9)


@given(st.lists(finite, min_size=1, max_size=60))
def test_the_median_is_numpys(values: list[float]) -> None:
    assert stats.median(values) == np.median(values)


def test_the_median_of_nothing_is_an_error_and_of_a_nan_is_nan() -> None:
    with pytest.raises(ValueError, match="no values"):
        stats.median([])
    assert math.isnan(stats.median([1.0, math.nan, 2.0]))
    assert stats.median([1.0, math.inf, math.inf]) == math.inf


@given(st.integers(0, 600), st.sampled_from([0.8, 0.9, 0.95, 0.975, 0.99]))
@example(5, 0.95)
@example(6, 0.95)
def test_the_interval_of_the_median_is_the_narrowest_that_the_binomial_allows(n: int, confidence: float) -> None:
    low, high = stats.median_interval([float(i) for i in range(1, n + 1)], confidence)
    if math.isnan(low):
        assert n == 0 or 2 * scipy_stats.binom.cdf(0, n, 0.5) > 1 - confidence
        return
    rank = int(low)
    assert high == n + 1 - rank
    assert 2 * scipy_stats.binom.cdf(rank - 1, n, 0.5) <= 1 - confidence + 1e-12
    assert 2 * scipy_stats.binom.cdf(rank, n, 0.5) > 1 - confidence - 1e-12 or rank > (n + 1) / 2 - 1


def test_the_interval_of_the_median_is_that_of_the_tables() -> None:
    """n = 25 at 95 %: ranks 8 and 18 (Conover, Practical Nonparametric Statistics, table of the sign test)."""
    assert stats.median_interval([float(i) for i in range(1, 26)]) == (8.0, 18.0)
    assert stats.median_interval([3.0, 1.0, 6.0, 2.0, 5.0, 4.0]) == (1.0, 6.0)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    draw = random.Random(7)
    hits = 0
    for _ in range(2000):
        low, high = stats.median_interval([draw.lognormvariate(0, 1) for _ in range(15)])
        hits += low <= 1 <= high
    assert 0.95 <= hits / 2000 <= 0.98  # exact: 96.5 %


def test_too_few_samples_have_no_interval_and_one_has_no_spread() -> None:
    for n in range(6):
        assert all(map(math.isnan, stats.median_interval([1.0] * n)))
    assert all(map(math.isnan, stats.quartiles([1.0])))
    assert math.isnan(stats.mad([1.0]))
    assert math.isnan(stats.autocorrelation([1.0, 2.0]))
    assert stats.quartiles([1.0, 2.0]) == (1.25, 1.75)
    assert stats.mad([1.0, 2.0]) == 0.5


def test_constant_samples_have_a_point_for_interval_no_outliers_and_no_autocorrelation() -> None:
    values = [0.1] * 12
    assert stats.median_interval(values) == (0.1, 0.1)
    assert stats.quartiles(values) == (0.1, 0.1)
    assert stats.mad(values) == 0
    assert stats.outliers(values) == ("",) * 12
    assert math.isnan(stats.autocorrelation(values))


def test_a_nan_among_the_samples_leaves_nothing_known() -> None:
    values = [1.0, 2.0, math.nan, 3.0, 4.0, 5.0, 6.0, 7.0]
    for found in (
        *stats.median_interval(values),
        *stats.quartiles(values),
        stats.mad(values),
        stats.autocorrelation(values),
    ):
        assert math.isnan(found)


@given(st.lists(finite, min_size=2, max_size=40))
def test_quartiles_are_numpys(values: list[float]) -> None:
    assert stats.quartiles(values) == pytest.approx(tuple(np.percentile(values, [25, 75])), rel=1e-9, abs=1e-6)


@given(st.lists(finite, min_size=2, max_size=40))
def test_the_median_absolute_deviation_is_scipys(values: list[float]) -> None:
    assert stats.mad(values) == pytest.approx(scipy_stats.median_abs_deviation(values), rel=1e-9, abs=1e-6)


@given(st.lists(finite, min_size=3, max_size=40).filter(lambda v: max(v) - min(v) > 1e-3))
def test_the_autocorrelation_is_the_usual_estimator(values: list[float]) -> None:
    off = np.asarray(values) - np.mean(values)
    expected = float(np.dot(off[:-1], off[1:]) / np.dot(off, off))
    assert stats.autocorrelation(values) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_outliers_are_labelled_by_tukeys_fences_and_none_is_dropped() -> None:
    values = [float(i) for i in range(1, 11)] + [1000.0]  # quartiles 3.5 and 8.5: fences at 16 and 23.5
    assert stats.outliers(values) == ("",) * 10 + ("severe",)
    assert stats.outliers([*values[:10], 18.0])[-1] == "mild"
    assert stats.outliers([*values[:10], 15.9])[-1] == ""
    assert stats.outliers([*values[:10], math.inf, math.nan])[-2:] == ("not_finite", "not_finite")
    assert stats.outliers([1.0, 1.0, 99.0]) == ("", "", "")


def test_a_tick_of_the_clock_is_no_outlier() -> None:
    values = [1e-3] * 20 + [1e-3 + 1e-9]
    assert stats.outliers(values)[-1] == "severe"
    assert stats.outliers(values, resolution=1e-8)[-1] == ""


@given(st.lists(finite, max_size=40))
def test_every_value_has_a_label(values: list[float]) -> None:
    assert len(stats.outliers(values)) == len(values)


@given(st.dictionaries(st.sampled_from("abcdef"), positive), st.dictionaries(st.sampled_from("abcdef"), positive))
def test_the_overall_ratio_is_the_geometric_mean_over_what_both_have(
    one: dict[str, float], two: dict[str, float]
) -> None:
    found = stats.overall(one, two)
    common = sorted(one.keys() & two.keys())
    assert sorted(found.used) == common
    assert set(found.left_out) == (one.keys() | two.keys()) - set(common)
    if common:
        assert found.ratio == pytest.approx(scipy_stats.gmean([two[k] / one[k] for k in common]), rel=1e-9)
    else:
        assert math.isnan(found.ratio)


def test_a_missing_cell_does_not_move_the_overall_ratio() -> None:
    found = stats.overall({"a": 2.0, "b": 100.0}, {"a": 2.0})
    assert (found.ratio, found.used, found.left_out) == (1.0, ("a",), ("b",))


def test_zeros_and_broken_numbers_take_no_part_in_the_overall_ratio() -> None:
    found = stats.overall({"a": 1.0, "b": 0.0, "c": 1.0, "d": math.inf}, {"a": 4.0, "b": 1.0, "c": math.nan, "d": 1.0})
    assert (found.ratio, found.left_out) == (pytest.approx(4.0), ("b", "c", "d"))


def test_samples_are_matched_by_their_round_not_by_their_place() -> None:
    pairs = stats.matched([1.0, 2.0, 3.0], [(0, 0), (0, 1), (0, 2)], [30.0, 10.0], [(0, 2), (0, 0)])
    assert pairs == [(1.0, 10.0), (3.0, 30.0)]


def test_rounds_of_another_process_are_no_match() -> None:
    assert stats.matched([1.0], [(0, 0)], [2.0], [(1, 0)]) == []


def test_a_round_that_occurs_twice_belongs_to_nobody() -> None:
    assert stats.matched([1.0, 2.0, 3.0], [0, 0, 1], [4.0, 5.0], [0, 1]) == [(3.0, 5.0)]
    assert stats.matched([1.0, 3.0], [0, 1], [4.0, 5.0, 6.0], [0, 1, 1]) == [(1.0, 4.0)]


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=40))
def test_the_paired_ratio_is_the_median_of_the_log_ratios(pairs: list[tuple[float, float]]) -> None:
    found = stats.paired_ratio(pairs)
    expected = math.exp(float(np.median([np.log(a) - np.log(b) for a, b in pairs])))
    assert found.ratio == pytest.approx(expected, rel=1e-9)
    assert (found.n, found.unusable) == (len(pairs), 0)
    assert math.isnan(found.low) == (len(pairs) < 6)
    if len(pairs) >= 6:
        assert found.low <= found.ratio <= found.high


@given(st.lists(st.tuples(positive, positive), min_size=6, max_size=40))
def test_turning_the_pairs_round_turns_the_ratio_round(pairs: list[tuple[float, float]]) -> None:
    found, turned = stats.paired_ratio(pairs), stats.paired_ratio([(b, a) for a, b in pairs])
    assert turned.ratio == pytest.approx(1 / found.ratio, rel=1e-9)
    assert turned.low == pytest.approx(1 / found.high, rel=1e-9)


def test_a_disturbance_that_both_feel_cancels() -> None:
    draw = random.Random(3)
    shared = [draw.uniform(1, 10) for _ in range(20)]
    found = stats.paired_ratio([(3 * s, 2 * s) for s in shared])
    assert (found.low, found.ratio, found.high) == (pytest.approx(1.5), pytest.approx(1.5), pytest.approx(1.5))


def test_times_of_zero_and_broken_ones_are_counted_not_guessed() -> None:
    found = stats.paired_ratio([(2.0, 1.0), (0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (math.nan, 1.0), (-1.0, 1.0)])
    assert (found.ratio, found.n, found.unusable) == (pytest.approx(2.0), 1, 5)
    nothing = stats.paired_ratio([(0.0, 0.0)])
    assert (nothing.n, nothing.unusable) == (0, 1)
    assert math.isnan(nothing.ratio)


def test_numbers_at_the_edge_of_floats_do_not_raise() -> None:
    assert stats.paired_ratio([(1e308, 1e-308)]).ratio == math.inf
    assert stats.paired_ratio([(1e-308, 1e308)]).ratio == 0
