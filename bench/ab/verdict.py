"""From paired rounds to verdicts: screen every cell, confirm suspects by fresh pairs. Pure; knows no torch.

Stage one: paired log-ratios (head over base) of all rounds of all pairs; the Wilcoxon signed-rank test over them,
Benjamini and Hochberg over the cells, and an effect above the limit (the larger of the threshold and the cell's
noise floor). Stage two: fresh pairs, all but `allowed` of one sign, and their median beyond the limit. Only both
together are a verdict: run after run of identical code passes neither.
Sources: Wilcoxon 1945; Benjamini and Hochberg 1995.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.stats import mad, median, median_interval

NORMAL_MAD = 1.4826  # a normal distribution's standard deviation over its MAD
RESOLVES = 3 * 1.25  # three standard errors of a median of normal noise


@dataclass(frozen=True)
class Rules:
    """How sure a verdict must be. Shares are fractions: 0.03 is 3 %."""

    threshold: float = 0.03
    rate: float = 0.05  # share of false discoveries that the screen may have
    pairs: int = 4
    rounds: int = 16
    fresh: int = 5
    allowed: int = 1  # fresh pairs that may have the other sign

    def least_rounds(self, cells: int) -> int:
        """Rounds from which one slow cell alone among `cells` can pass the screen at all (2^(1-R) < rate / cells)."""
        return math.ceil(1 - math.log2(self.rate / cells))


@dataclass(frozen=True)
class Screened:
    """What stage one says of a cell. ratio: head over base, with its interval; limit: what an effect must exceed.

    resolution is the smallest change these rounds could tell from noise; q the corrected p-value.
    """

    ratio: float
    low: float
    high: float
    p: float
    q: float
    limit: float
    resolution: float
    pairs: tuple[float, ...]
    rounds: int
    suspect: bool


@dataclass(frozen=True)
class Verdict:
    """better, worse, same, unclear; with the reason, and the ratio it rests on."""

    verdict: str
    why: str
    ratio: float


def screen(
    cells: Mapping[int, Sequence[Sequence[float]]], rules: Rules, floors: Mapping[int, float] | None = None
) -> dict[int, Screened]:
    """Stage one. `cells` holds, for each cell, the log-ratios of each pair's rounds."""
    known = {cell: [x for pair in pairs for x in pair] for cell, pairs in cells.items()}
    known = {cell: logs for cell, logs in known.items() if logs}
    p = {cell: signed_rank(logs) for cell, logs in known.items()}
    q = corrected(p)
    return {
        cell: _screened(logs, cells[cell], p[cell], q[cell], rules, (floors or {}).get(cell, 0.0))
        for cell, logs in known.items()
    }


def _screened(
    logs: Sequence[float], pairs: Sequence[Sequence[float]], p: float, q: float, rules: Rules, floor: float
) -> Screened:
    limit = max(rules.threshold, floor)
    centre = median(logs)
    low, high = median_interval(logs)
    spread = mad(logs) * NORMAL_MAD
    resolution = math.expm1(RESOLVES * spread / math.sqrt(len(logs))) if math.isfinite(spread) else math.inf
    return Screened(
        ratio=math.exp(centre),
        low=math.exp(low),
        high=math.exp(high),
        p=p,
        q=q,
        limit=limit,
        resolution=resolution,
        pairs=tuple(math.exp(median(pair)) for pair in pairs if pair),
        rounds=len(logs),
        suspect=q < rules.rate and abs(centre) > math.log1p(limit),
    )


def signed_rank(logs: Sequence[float]) -> float:
    """Two-sided p-value of the Wilcoxon signed-rank test that the ratios centre on 1; 1 where all are 1."""
    from scipy.stats import wilcoxon

    if not any(logs):
        return 1.0
    return float(wilcoxon(logs).pvalue)


def corrected(p: Mapping[int, float]) -> dict[int, float]:
    """Benjamini and Hochberg's correction over the cells."""
    from scipy.stats import false_discovery_control

    if not p:
        return {}
    return dict(zip(p, map(float, false_discovery_control(list(p.values()))), strict=True))


def decide(found: Screened, fresh: Sequence[Sequence[float]], rules: Rules) -> Verdict:
    """The verdict on a cell; `fresh` holds the log-ratios of each confirming pair, empty where none was asked for."""
    if found.suspect:
        return _confirmed(found, fresh, rules)
    said = f"{_percent(found.ratio)} over {found.rounds} rounds of {len(found.pairs)} pairs (q = {found.q:.2g})"
    if found.resolution > found.limit or math.isnan(found.low):
        return Verdict("unclear", f"{said}; this machine resolves {found.resolution:.1%} today", found.ratio)
    edge = 1 + found.limit
    if 1 / edge <= found.low and found.high <= edge:
        return Verdict("same", f"{said}: within ±{found.limit:.1%} with 95 % confidence", found.ratio)
    return Verdict("unclear", f"{said}; neither beyond {found.limit:.1%} nor surely within it", found.ratio)


def _confirmed(found: Screened, fresh: Sequence[Sequence[float]], rules: Rules) -> Verdict:
    medians = [median(pair) for pair in fresh if pair]
    screened = f"{_percent(found.ratio)} in the screen (q = {found.q:.2g})"
    if len(medians) < rules.fresh:
        return Verdict("unclear", f"{screened}, but only {len(medians)} of {rules.fresh} fresh pairs ran", found.ratio)
    slower = found.ratio > 1
    agree = sum((x > 0) == slower for x in medians)
    centre = median(medians)
    said = f"{screened}; {agree} of {len(medians)} fresh pairs agree, at {_percent(math.exp(centre))}"
    beyond = centre > math.log1p(found.limit) if slower else centre < -math.log1p(found.limit)
    if agree >= len(medians) - rules.allowed and beyond:
        return Verdict("worse" if slower else "better", said, math.exp(centre))
    return Verdict("unclear", f"{said}: not confirmed beyond {found.limit:.1%}", math.exp(centre))


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"
