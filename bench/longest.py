"""The longest sequence whose step stays within so many bytes: found from a few probes, by what they show of its growth.

A probe measures one step's exact peak above its inputs. Doubling from 1,024 tokens (shorter steps say more about
scratch than about growth) finds a length that fits and one that does not; between them a curve through the nearest
probes says where to look, until a length fits and the next one, 128 tokens on, does not: *verified*. Where a probe
would take too long, or there were MOST of them, the curve goes on alone, between a line and a square: *predicted*.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

STEP = 128  # lengths are whole numbers of these
FIRST, MOST = 1024, 8
PATIENCE_S = 4.0  # a probe that is predicted to take longer is not made
FARTHEST = 2**24  # tokens; beyond this nothing is predicted


@dataclass(frozen=True)
class Probe:
    """One length that was tried: bytes of its peak (infinite where the machine had no room), and seconds of it all."""

    n: int
    peak: float
    seconds: float


@dataclass(frozen=True)
class Longest:
    """n: the longest length within the limit, 0 where not even the shortest fits. verified: that the next one does not
    was measured; else it is what the probes let one expect. why: in words."""

    n: int
    verified: bool
    why: str
    probes: tuple[Probe, ...]


@dataclass
class _Search:
    """Probes made so far, and the last length known to fit and first known not to."""

    measure: Callable[[int], Probe]
    limit: int
    probes: list[Probe] = field(default_factory=list)

    @property
    def fits(self) -> int:
        return max((p.n for p in self.probes if p.peak <= self.limit), default=0)

    @property
    def exceeds(self) -> float:
        return min((p.n for p in self.probes if p.peak > self.limit), default=math.inf)

    def why_not(self, n: int) -> str:
        """Why a length is not probed, "" where it can be."""
        if len(self.probes) >= MOST:
            return f"{MOST} probes were made"
        seconds = _seconds(self.probes, n)
        return f"a probe of {n} would take about {seconds:.0f} s" if seconds > PATIENCE_S else ""

    def probe(self, n: int) -> None:
        self.probes.append(self.measure(n))


def longest(measure: Callable[[int], Probe], limit: int) -> Longest:
    """The longest length within `limit` bytes; at most MOST probes."""
    search = _Search(measure, limit)
    search.probe(FIRST)
    why = _bracket(search)
    while not why and search.exceeds - search.fits > STEP:
        guess = _between(search)
        why = search.why_not(guess)
        if not why:
            search.probe(guess)
    probes = tuple(search.probes)
    if not why:
        return Longest(search.fits, True, f"measured: {search.fits} fits, {int(search.exceeds)} does not", probes)
    return Longest(_predicted(search), False, f"{why}; measured up to {search.fits}", probes)


def _bracket(search: _Search) -> str:
    """Goes up while lengths fit, or down while none does; why it had to stop before, if it had to."""
    while not search.fits and search.exceeds > STEP:
        search.probe(max(STEP, int(search.exceeds) // 4 // STEP * STEP))
    while search.exceeds == math.inf:
        n = search.fits * 2
        if search.why_not(n) and len(search.probes) == 1:
            search.probe(FIRST // 2)  # one point shows no growth, of bytes or of seconds
        if (why := search.why_not(n)) or n > FARTHEST:
            return why or f"{n} is farther than anybody goes"
        search.probe(n)
    return ""


def _between(search: _Search) -> int:
    """A length between the two, where the curve crosses the limit; the neighbour of one that is known already."""
    low, high = search.fits, int(search.exceeds)
    guess = int(_crossing(search)) // STEP * STEP
    guess = min(max(guess, low + STEP), high - STEP)
    if guess == low + STEP and high - low > 4 * STEP and len(search.probes) % 2:
        guess = (low + high) // 2 // STEP * STEP  # a curve that keeps pointing at an end is no guide
    return guess


def _predicted(search: _Search) -> int:
    n = int(_crossing(search)) // STEP * STEP
    return int(min(max(n, search.fits), search.exceeds - STEP, FARTHEST))


def _crossing(search: _Search) -> float:
    """Where a curve a + b·n + c·n² through the three nearest probes reaches the limit, b and c not negative; a power
    between a line and a square through fewer."""
    finite = sorted((p for p in search.probes if math.isfinite(p.peak)), key=lambda p: abs(p.peak - search.limit))[:3]
    near = sorted(finite, key=lambda p: p.n)
    if len(near) < 3:
        return float(near[-1].n * (search.limit / max(near[-1].peak, 1)) ** (1 / _power(near, lambda p: p.peak)))
    a, b, c = _curve(near)
    rest = search.limit - a
    if c > 0:
        return (-b + math.sqrt(max(b * b + 4 * c * rest, 0.0))) / (2 * c)
    return rest / b if b > 0 else float(FARTHEST)


def _curve(near: list[Probe]) -> tuple[float, float, float]:
    """(a, b, c) through three probes: a straight line where they do not bend upwards, a square and a constant where
    they bend more than that."""
    first, middle, last = near
    before = (middle.peak - first.peak) / (middle.n - first.n)
    after = (last.peak - middle.peak) / (last.n - middle.n)
    c = (after - before) / (last.n - first.n)
    b = after - c * (last.n + middle.n)
    if c <= 0:
        slope = after if after > 0 else max((last.peak - first.peak) / (last.n - first.n), 0.0)
        return last.peak - slope * last.n, slope, 0.0
    if b < 0:
        c, b = (last.peak - middle.peak) / (last.n**2 - middle.n**2), 0.0
    return last.peak - b * last.n - c * last.n**2, b, c


def _seconds(probes: list[Probe], n: int) -> float:
    """What a probe of n will take, by the growth between the last two, between a line and a square."""
    known = sorted(probes, key=lambda p: p.n)
    if not known:
        return 0.0
    return float(known[-1].seconds * max(n / known[-1].n, 1.0) ** _power(known, lambda p: p.seconds))


def _power(known: list[Probe], read: Callable[[Probe], float]) -> float:
    """How the last two grow, as a power of n between a line and a square; a square where there is one alone."""
    values = [read(p) for p in known[-2:]]
    if len(values) < 2 or min(values) <= 0:
        return 2.0
    return min(max(math.log(values[1] / values[0]) / math.log(known[-1].n / known[-2].n), 1.0), 2.0)
