"""Statistics on lists, recomputed whenever a stored run is read. Pure, standard library only.

What can not be known is `nan`, never a zero that reads like certainty: one sample has no spread, and too few
samples have no interval. A NaN among the samples makes the result NaN; infinities sort as numbers do.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

UNKNOWN = (math.nan, math.nan)
MILD, SEVERE = 1.5, 3.0  # Tukey's inner and outer fence, in interquartile ranges (Exploratory Data Analysis, 1977)


@dataclass(frozen=True)
class Estimate:
    """A ratio with its interval. `n` pairs were used; `unusable` had a value that is not positive and finite."""

    ratio: float
    low: float
    high: float
    n: int
    unusable: int


@dataclass(frozen=True)
class Overall:
    """A geometric mean of ratios over the keys both sides have, and the keys that could not take part."""

    ratio: float
    used: tuple[str, ...]
    left_out: tuple[str, ...]


def median(values: Sequence[float]) -> float:
    """The middle value. Raises ValueError when there are none."""
    if not values:
        raise ValueError("the median of no values")
    if any(math.isnan(value) for value in values):
        return math.nan
    ordered = sorted(values)
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Order statistics that hold the median with at least `confidence`, whatever the distribution.

    Exact by the binomial; (nan, nan) where there are too few samples (at 95 % fewer than six).
    Source: David and Nagaraja, Order Statistics, 3rd edition, section 7.1.
    """
    n = len(values)
    rank = _rank(n, confidence)
    if rank == 0 or any(math.isnan(value) for value in values):
        return UNKNOWN
    ordered = sorted(values)
    return float(ordered[rank - 1]), float(ordered[n - rank])


@lru_cache(maxsize=1024)
def _rank(n: int, confidence: float) -> int:
    """The largest r with 2 P(Bin(n, 1/2) < r) <= 1 - confidence; 0 when there is none."""
    tail, rank = 0.0, 0
    while rank <= n // 2:
        log_mass = math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1) - n * math.log(2)
        tail += math.exp(log_mass)
        if 2 * tail > 1 - confidence:
            break
        rank += 1
    return rank


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile by linear interpolation; (nan, nan) for fewer than two samples."""
    if len(values) < 2 or any(math.isnan(value) for value in values):
        return UNKNOWN
    ordered = sorted(values)
    return _quantile(ordered, 0.25), _quantile(ordered, 0.75)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return float(low) if low == high else low + (high - low) * (place - below)


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median, unscaled; nan for fewer than two samples."""
    if len(values) < 2:
        return math.nan
    centre = median(values)
    return median([abs(value - centre) for value in values])


def outliers(values: Sequence[float], resolution: float = 0.0) -> tuple[str, ...]:
    """A label per value: "", "mild", "severe" (Tukey's fences) or "not_finite". Labelled, never dropped.

    A value less than `resolution` (the clock's) beyond the fence is none: constant samples with a tick of
    difference have no outliers. Fewer than four finite samples have none either.
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = quartiles(finite) if len(finite) >= 4 else UNKNOWN
    return tuple(_label(value, low, high, resolution) for value in values)


def _label(value: float, low: float, high: float, resolution: float) -> str:
    if not math.isfinite(value):
        return "not_finite"
    beyond = max(low - value, value - high)  # nan, and so never beyond, where there are no quartiles
    if not beyond > resolution:
        return ""
    reach = high - low
    return "severe" if beyond > SEVERE * reach else "mild" if beyond > MILD * reach else ""


def autocorrelation(values: Sequence[float]) -> float:
    """Correlation of neighbours (lag 1); nan for fewer than three samples, constant or non-finite ones."""
    if len(values) < 3 or not all(math.isfinite(value) for value in values):
        return math.nan
    mean = math.fsum(values) / len(values)
    off = [value - mean for value in values]
    scale = max(map(abs, off))
    if min(values) == max(values) or scale == 0:
        return math.nan
    off = [value / scale for value in off]  # squares of tiny deviations would vanish
    return math.fsum(a * b for a, b in pairwise(off)) / math.fsum(a * a for a in off)


def overall(before: Mapping[str, float], after: Mapping[str, float]) -> Overall:
    """Geometric mean of after/before over the keys both have with positive finite values; nan over none."""
    keys = dict.fromkeys([*before, *after])
    used = tuple(k for k in keys if _usable(before.get(k, math.nan)) and _usable(after.get(k, math.nan)))
    logs = [math.log(after[k]) - math.log(before[k]) for k in used]
    ratio = math.exp(math.fsum(logs) / len(logs)) if logs else math.nan
    return Overall(ratio, used, tuple(k for k in keys if k not in set(used)))


def matched(
    values: Sequence[float], keys: Sequence[Hashable], others: Sequence[float], other_keys: Sequence[Hashable]
) -> list[tuple[float, float]]:
    """(value, other) where both were taken under one key, such as (process, round), in the order of `values`.

    A key that occurs twice on a side says nothing about which belongs to which: it is left out.
    """
    ours, theirs = _once(values, keys), _once(others, other_keys)
    return [(value, theirs[key]) for key, value in ours.items() if key in theirs]


def _once(values: Sequence[float], keys: Sequence[Hashable]) -> dict[Hashable, float]:
    found = dict(zip(keys, values, strict=True))
    if len(found) == len(keys):
        return found
    counts: dict[Hashable, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return {key: value for key, value in found.items() if counts[key] == 1}


def log_ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """log(value / other) of each pair of positive finite numbers; other pairs have no ratio and are skipped."""
    return [math.log(a) - math.log(b) for a, b in pairs if _usable(a) and _usable(b)]


def paired_ratio(pairs: Sequence[tuple[float, float]], confidence: float = 0.95) -> Estimate:
    """exp of the median log ratio of (value, other) pairs, with the order-statistic interval of that median.

    No usable pair: everything nan. One to five: a ratio without interval. Zeros and non-finite values
    make no ratio; they are counted as unusable, so that a caller can refuse to judge.
    """
    logs = log_ratios(pairs)
    unusable = len(pairs) - len(logs)
    if not logs:
        return Estimate(math.nan, math.nan, math.nan, 0, unusable)
    low, high = median_interval(logs, confidence)
    return Estimate(_exp(median(logs)), _exp(low), _exp(high), len(logs), unusable)


def _exp(value: float) -> float:
    return math.exp(value) if not value > 709 else math.inf  # 1e308 over 1e-308 is beyond a float


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0
