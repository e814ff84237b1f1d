"""Levels of a series: where it changed and stayed changed, by the least absolute error and a price for each change.

The piecewise constant series is sought that minimises Σ |x_t − level_t| + penalty · (changes), with at least `SHORTEST`
points on a level (two on the last, which may have just begun). That is what PELT with an L1 cost minimises; here it
is found exactly, for many series at once, by dynamic programming over levels: a best level is a median, and so one of
the points (the lower of two middle ones costs no more). A lone spike is cheaper to bear than two changes.
Sources: Killick, Fearnhead, Eckley 2012, arXiv 1101.1438 (PELT); Storath, Weinmann, Unser 2016, arXiv 1404.7640.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

SHORTEST, SHORTEST_LAST = 3, 2
PRICE = 3.0  # times log(points) times the noise of the series

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """Points first..last (the last not included) at one level, their median."""

    first: int
    last: int
    value: float


def segment(series: Array, price: float = PRICE) -> list[list[Level]]:
    """The levels of each row of `series` [S, T]; NaN is a night without a number and belongs to no level.

    The penalty of a row is price · log(T) · its noise: 1.4826 times the MAD of its first differences over √2. A row
    without noise pays a billionth of its largest distance, so that any change of a constant row shows.
    """
    return [_one(row, price) for row in np.atleast_2d(np.asarray(series, dtype=float))]


def _one(row: Array, price: float) -> list[Level]:
    there = np.flatnonzero(np.isfinite(row))
    points = row[there]
    if not len(points):
        return []
    bounds = [0, *changes(points, price * math.log(max(len(points), 2)) * noise(points)), len(points)]
    levels = []
    for lo, hi in pairwise(bounds):
        last = int(there[hi]) if hi < len(points) else len(row)
        levels.append(Level(int(there[lo]), last, float(np.median(points[lo:hi]))))
    return levels


def noise(points: Array) -> float:
    """A robust standard deviation from first differences, which a change of level hardly touches."""
    if len(points) < 2:
        return 0.0
    steps = np.diff(points)
    spread = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
    return spread or 1e-9 * float(np.ptp(points))


def changes(points: Array, penalty: float) -> list[int]:
    """Indices at which a new level begins. Exact; O(T · number of distinct values) time and memory."""
    count = len(points)
    if count < SHORTEST + SHORTEST_LAST or np.ptp(points) == 0:
        return []
    values = np.unique(points)
    off = np.abs(points[:, None] - values[None])  # [T, K]: what it costs that point t lies on level k
    # cost[a, k]: the best so far with the last point the (a + 1)-th of its level k; the last a means "or more".
    cost = np.full((SHORTEST, len(values)), np.inf)
    cost[0] = off[0]
    came = np.zeros((count, SHORTEST, len(values)), dtype=np.int8)  # 0: began here, 1: one younger, 2: as old
    before = np.zeros(count, dtype=np.int64)  # the level left at t by whoever begins a new one there
    for t in range(1, count):
        aged = np.full_like(cost, np.inf)
        old = cost[SHORTEST - 1]
        before[t] = int(np.argmin(old))
        aged[0] = old[before[t]] + penalty
        aged[1 : SHORTEST - 1] = cost[: SHORTEST - 2]
        stay = cost[SHORTEST - 2] > old
        aged[SHORTEST - 1] = np.where(stay, old, cost[SHORTEST - 2])
        came[t, 1 : SHORTEST - 1] = 1
        came[t, SHORTEST - 1] = np.where(stay, 2, 1)
        cost = aged + off[t]
    return _traced(cost, came, before)


def _traced(cost: Array, came: NDArray[np.int8], before: NDArray[np.int64]) -> list[int]:
    """Back from the cheapest end at which the last level is old enough."""
    last = cost[SHORTEST_LAST - 1 :]
    age, level = divmod(int(np.argmin(last)), last.shape[1])
    age, found = age + SHORTEST_LAST - 1, []
    for t in range(len(came) - 1, 0, -1):
        step = came[t, age, level]
        if step == 0:
            found.append(t)
            age, level = SHORTEST - 1, int(before[t])
        elif step == 1:
            age -= 1
    return found[::-1]
