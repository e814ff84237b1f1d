"""What the change of one number means, by the kind of its metric. Used by `bench.compare` only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.record import MetricInfo, Reading, Scalar
from bench.stats import median


@dataclass(frozen=True)
class Judged:
    """A verdict with its reason, and the ratio it rests on."""

    verdict: str
    why: str
    ratio: float | None = None
    interval: tuple[float, float] | None = None


def value_of(reading: Reading | None, info: MetricInfo) -> float | None:
    """The number that stands for a reading: a median where it is timed, else the worst that was seen."""
    if reading is None or not reading.values:
        return None
    if any(math.isnan(value) for value in reading.values):
        return math.nan
    if info.noise == "timed":
        return median(reading.values)
    return min(reading.values) if info.better == "higher" else max(reading.values)


def ratio_of(before: float, after: float) -> float | None:
    """after / before; 1 where both are equal, 0 where it fell to nothing, None where there is no such number."""
    if before == after:
        return 1.0
    ratio = after / before if before else math.nan
    return ratio if math.isfinite(ratio) else None


def exact(info: MetricInfo, before: float, after: float) -> Judged:
    """Any change counts, in the metric's direction; NaN is worse than any number."""
    ratio = ratio_of(before, after)
    if before == after or (math.isnan(before) and math.isnan(after)):
        return Judged("same", "", ratio)
    if info.better not in ("lower", "higher"):
        return Judged("unclear", "it changed; the metric has no better direction", ratio)
    worse = not after < before if info.better == "lower" else not after > before  # nan is worse than any number
    worse = worse and not math.isnan(before)
    why = f"by {after - before:+,.10g} {info.unit}: any change of an exact metric counts"
    return Judged("worse" if worse else "better", why, ratio)


def within_budget(budget: Scalar, before: float, after: float) -> Judged:
    """An error is worse where it now exceeds its budget and did not before; without one, where it is not finite."""
    ratio = ratio_of(before, after)
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        over, limit = (not math.isfinite(before), not math.isfinite(after)), "not finite"
    else:
        over, limit = (not before <= budget, not after <= budget), f"over its budget of {budget:.3g}"
    if over[0] == over[1]:
        return Judged("same", f"both times {limit}" if over[1] else "", ratio)
    return Judged("worse" if over[1] else "better", f"{limit} {'now' if over[1] else 'before'}", ratio)
