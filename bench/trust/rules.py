"""What the rules of `ab` make of recorded pairs, drawn without replacement. Pure; knows no torch.

A decision takes `pairs` pairs for the screen and `fresh` more for the confirmation, from one noise class. For a false
alarm all cells are identical code; for a detection one cell is slow, alone among cells that are not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.ab.verdict import Rules, decide, screen
from bench.stats import log_ratios, median

CLASSES = ((0.10, "up to 10 %"), (0.20, "up to 20 %"), (float("inf"), "beyond 20 %"))
SAME = "same"

Logs = Mapping[str, Sequence[float]]
"""log(head / base) of the rounds of one pair, by cell."""


@dataclass(frozen=True)
class Found:
    """A rate: how many of `draws` decisions, of so many pairs, of which `independent` decisions share none."""

    hits: int
    draws: int
    pairs: int
    independent: int

    @property
    def rate(self) -> float:
        """The estimate."""
        return self.hits / self.draws if self.draws else float("nan")

    def bound(self, *, upper: bool) -> float:
        """Clopper and Pearson's one-sided 95 % bound, as if only the independent decisions had been made."""
        from scipy.stats import beta

        n, k = self.independent, round(self.rate * self.independent) if self.draws else 0
        if not n:
            return 1.0 if upper else 0.0
        if upper:
            return 1.0 if k == n else float(beta.ppf(0.95, k + 1, n - k))
        return 0.0 if k == 0 else float(beta.ppf(0.05, k, n - k + 1))


def class_of(spread: float) -> str:
    """The noise class of a pair."""
    return next(name for most, name in CLASSES if spread <= most)


def by_class(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[Logs]]]:
    """Pairs by noise class and kind."""
    found: dict[str, dict[str, list[Logs]]] = {}
    for line in lines:
        if "blocks" in line and not line["failed"]:
            logs = {
                cell: log_ratios([(head, base) for base, head in rounds]) for cell, rounds in line["blocks"].items()
            }
            found.setdefault(class_of(line["spread"]), {}).setdefault(line["kind"], []).append(logs)
    return found


def effects(pairs: Sequence[Logs]) -> dict[str, float]:
    """The measured true effect on each cell: the median log-ratio over every round there is."""
    cells = pairs[0] if pairs else {}
    return {cell: median([x for pair in pairs for x in pair[cell]]) for cell in cells}


def alarms(same: Sequence[Logs], rules: Rules, draws: int, cells: int, seed: int = 0) -> tuple[Found, Found]:
    """(cells called worse or better, comparisons with any) over `draws` comparisons of `cells` cells of the same code.

    More cells than a pair has are made of several draws, each of its own pairs.
    """
    order = random.Random(seed)  # noqa: S311 - draws, keeps no secret
    need, names = rules.pairs + rules.fresh, sorted(same[0]) if same else []
    copies = max(1, round(cells / max(len(names), 1)))
    if len(same) < need:
        return Found(0, 0, len(same), 0), Found(0, 0, len(same), 0)
    called = spoiled = 0
    for _ in range(draws):
        taken = [order.sample(same, need) for _ in range(copies)]
        verdicts = _judged({(c, name): [p[name] for p in taken[c]] for c in range(copies) for name in names}, rules)
        wrong = sum(v in ("worse", "better") for v in verdicts.values())
        called, spoiled = called + wrong, spoiled + bool(wrong)
    disjoint = len(same) // need
    return (
        Found(called, draws * copies * len(names), len(same), disjoint * len(names)),
        Found(spoiled, draws, len(same), max(disjoint // copies, 0)),
    )


def detection(
    same: Sequence[Logs], slow: Sequence[Logs], rules: Rules, draws: int, *, only: Sequence[str] = (), seed: int = 0
) -> Found:
    """How often one slow cell, alone among identical ones, is called worse. only: cells to choose it from."""
    order = random.Random(seed)  # noqa: S311
    need = rules.pairs + rules.fresh
    names = sorted(same[0]) if same else []
    chosen = [name for name in names if not only or name in only]
    if min(len(same), len(slow)) < need or not chosen:
        return Found(0, 0, len(slow), 0)
    hits = 0
    for number in range(draws):
        target = chosen[number % len(chosen)]
        quiet, loud = order.sample(same, need), order.sample(slow, need)
        cells = {(0, name): [p[name] for p in (loud if name == target else quiet)] for name in names}
        hits += _judged(cells, rules)[0, target] == "worse"
    return Found(hits, draws, len(slow), len(slow) // need * len(chosen))


def _judged(cells: Mapping[Any, Sequence[Sequence[float]]], rules: Rules) -> dict[Any, str]:
    """The verdict on each cell: the first pairs screen, the others confirm where they are asked."""
    names = list(cells)
    found = screen({i: cells[name][: rules.pairs] for i, name in enumerate(names)}, rules)
    return {name: decide(found[i], cells[name][rules.pairs :], rules).verdict for i, name in enumerate(names)}
