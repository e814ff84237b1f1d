"""A timed reading as the ratio to its group's reference, matched round by round: a slow hour cancels."""

from __future__ import annotations

import math

from bench.record import Reading
from bench.stats import Estimate, matched, paired_ratio


def moments(reading: Reading) -> list[tuple[int, int]]:
    """When each value was taken, as (process, round); a reading that does not say is one process, in order."""
    count = len(reading.values)
    return list(zip(reading.process or (0,) * count, reading.round or range(count), strict=True))


def to_reference(reading: Reading, reference: Reading | None, confidence: float = 0.95) -> Estimate | str:
    """How many times the reference it takes, over the rounds both were in; or a sentence why nobody can say."""
    if reference is None or not reference.values:
        return "the reference has no number for it"
    pairs = matched(reading.values, moments(reading), reference.values, moments(reference))
    found = paired_ratio(pairs, confidence)
    if found.unusable:
        return f"{found.unusable} of {len(pairs)} rounds have no ratio: a value is zero, negative or not finite"
    if math.isnan(found.low):
        return f"{found.n} rounds shared with the reference are too few to tell a change from noise"
    if found.low == 0 or math.isinf(found.high):
        return "the ratio to the reference is beyond every number"
    return found
