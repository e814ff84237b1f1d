"""Who won: the fastest, leanest and most exact contender of each group, and by how much."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.ratios import moments
from bench.record import Reading
from bench.stats import Estimate, matched, paired_ratio

SAME_ERROR = 1.1  # errors are read from sampled rows of one input: a tenth more or less is not a difference


@dataclass(frozen=True)
class Question:
    """A metric of which less is better, and the words for having less of it and more of it."""

    title: str
    metric: str
    less: str
    more: str
    slack: float = 1.0


QUESTIONS = (
    Question("Fastest", "latency", "faster", "slower"),
    Question("Leanest", "peak", "smaller", "larger"),
    Question("Most exact", "error_out", "closer", "farther", SAME_ERROR),
)


@dataclass(frozen=True)
class Answer:
    """What a group says to a question. Several winners are a tie; none is explained by `why`.

    `ratio` is the reference's value divided by the winner's, None where there is no such reference or
    it is the winner; `ahead` is the next contender's value divided by the only winner's. `imprecise` are
    contenders that had less, over the precision budget: never winners. `kin` is the best contender that
    computes what the reference computes, where the winner is another function. `alone`: nobody else was in
    the running.
    """

    question: Question
    winners: tuple[str, ...] = ()
    value: float = math.nan
    ratio: float | None = None
    ahead: float | None = None
    reference: str = ""
    imprecise: tuple[str, ...] = ()
    kin: str | None = None
    kin_ratio: float | None = None
    alone: bool = False
    why: str = ""


def answer(question: Question, group: pd.DataFrame) -> Answer:
    """The answer of one group (rows of the frame that were measured on the same inputs)."""
    metric = f"m:{question.metric}"
    numbered = group[group[metric].map(math.isfinite)] if metric in group else group.iloc[:0]
    right = numbered[numbered["outcome"] == "ok"].sort_values([metric, "subject"])
    if right.empty:
        return Answer(question, why=_why_none(question, group, numbered))
    best = right.iloc[0]
    winners = right[_ties(right, metric, question.slack)]["subject"]
    reference = numbered[numbered["subject"] == numbered["reference"]]
    same = right.iloc[:0] if reference.empty else right[right["variant"] == reference.iloc[0]["variant"]]
    kin = None if same.empty or best["variant"] == same.iloc[0]["variant"] else same.iloc[0]
    faster = numbered[(numbered["outcome"] == "imprecise") & (numbered[metric] < best[metric])]
    return Answer(
        question,
        winners=tuple(winners),
        value=float(best[metric]),
        ratio=_ratio(best, reference, metric),
        ahead=_ahead(right, len(winners), metric),
        reference="" if reference.empty else str(reference.iloc[0]["subject"]),
        imprecise=tuple(faster["subject"]),
        kin=None if kin is None else str(kin["subject"]),
        kin_ratio=None if kin is None else _ratio(kin, reference, metric),
        alone=len(right) == 1,
    )


def tally(answers: Sequence[Answer]) -> list[tuple[str, int]]:
    """How often each contender won alone, most often first."""
    return Counter(a.winners[0] for a in answers if len(a.winners) == 1).most_common()


def _ties(right: pd.DataFrame, metric: str, slack: float) -> list[bool]:
    """Who cannot be told from the best, the first row."""
    best = right.iloc[0]
    return [index == 0 or _tied(row, best, metric, slack) for index, (_, row) in enumerate(right.iterrows())]


def _tied(row: pd.Series, best: pd.Series, metric: str, slack: float) -> bool:
    """Whether `row` is within reach of the best: by rounds they share where there are six, else by intervals.

    Contenders of a group are timed in the same rounds, so a slow moment of the machine hits both and their
    ratio is known better than either time.
    """
    ratio = _paired(row.get(f"{metric}:reading"), best.get(f"{metric}:reading"))
    if ratio is not None and not math.isnan(ratio.low):
        return ratio.low <= 1
    return bool(row[f"{metric}:low"] <= max(best[f"{metric}:high"], best[metric] * slack))


def _paired(one: Any, other: Any) -> Estimate | None:
    if not isinstance(one, Reading) or not isinstance(other, Reading) or not one.round or not other.round:
        return None
    return paired_ratio(matched(one.values, moments(one), other.values, moments(other)))


def _ratio(row: pd.Series, reference: pd.DataFrame, metric: str) -> float | None:
    if reference.empty or reference.iloc[0]["subject"] == row["subject"]:
        return None
    value = float(row[metric])
    return float(reference.iloc[0][metric]) / value if value > 0 else None


def _ahead(right: pd.DataFrame, winners: int, metric: str) -> float | None:
    """By what factor the best is ahead of the next, where it won alone against somebody."""
    if winners > 1 or len(right) < 2:
        return None
    best, following = float(right.iloc[0][metric]), float(right.iloc[1][metric])
    return following / best if best > 0 else None


def _why_none(question: Question, group: pd.DataFrame, numbered: pd.DataFrame) -> str:
    if not numbered.empty:
        return "every contender is over its precision budget"
    if not group["measured"].any():
        return "no contender ended well: " + ", ".join(sorted(set(group["outcome"])))
    reasons = Counter(str(why) for why in group.get(f"m:{question.metric}:why", pd.Series()).dropna())
    return reasons.most_common(1)[0][0] if reasons else "not recorded in this run"
