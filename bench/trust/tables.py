"""The evaluation of both campaigns as data, and as the tables of docs/trust.md. Knows no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import exp
from pathlib import Path
from typing import Any

from bench.ab.verdict import Rules
from bench.markdown import table
from bench.stats import median
from bench.trust import raw
from bench.trust.rules import CLASSES, SAME, Found, Logs, alarms, by_class, detection, effects

NIGHT = 300
RULES = {
    "default: 4 pairs, 3 %, 4 of 5 fresh": Rules(),
    "6 pairs, 2.5 %, 6 of 7 fresh": Rules(threshold=0.025, pairs=6, fresh=7),
    "ten minutes: 16 pairs, 1.5 %, 8 of 9 fresh": Rules(threshold=0.015, pairs=16, fresh=9),
}
NEAR = {"3": (0.02, 0.04), "5": (0.04, 0.065), "10": (0.085, 0.125)}  # a measured effect that is called by its name

Tell = Callable[[str], None]


def evaluated(folder: Path, draws: int, tell: Tell) -> dict[str, Any]:
    """Every row of both tables."""
    lines = raw.read(folder / "pairs.gz")
    classes = by_class(lines)
    rows = []
    for _, name in CLASSES:
        kinds = classes.get(name, {})
        for words, rules in RULES.items():
            tell(f"{name}: {words}")
            rows.append({"class": name, "rules": words} | _row(kinds, rules, draws))
    spreads = [line["spread"] for line in lines if "blocks" in line]
    return {
        "pairs": rows,
        "spreads": sorted(spreads),
        "live": [_live(kind, found) for kind, found in _by_kind(raw.read(folder / "live.gz")).items()],
    }


def _row(kinds: Mapping[str, Sequence[Logs]], rules: Rules, draws: int) -> dict[str, Any]:
    same = kinds.get(SAME, [])
    cell, comparison = alarms(same, rules, draws, len(same[0]) if same else 0)
    _, night = alarms(same, rules, max(draws // 10, 1), NIGHT)
    row: dict[str, Any] = {"cell": _shown(cell, upper=True), "comparison": _shown(comparison, upper=True),
                           "night": _shown(night, upper=True)}  # fmt: skip
    for kind, (low, high) in NEAR.items():
        slow = kinds.get(kind, [])
        true = {name: exp(log) - 1 for name, log in effects(slow).items()}
        near = [name for name, effect in true.items() if low <= effect <= high]
        row[kind] = _shown(detection(same, slow, rules, draws), upper=False) | {
            "effect": median(list(true.values())) if true else None,
            "near": _shown(detection(same, slow, rules, draws, only=near), upper=False) if near else None,
            "near_cells": len(near),
        }
    return row


def _shown(found: Found, *, upper: bool) -> dict[str, Any]:
    rate = found.rate if found.draws else None
    return asdict(found) | {"rate": rate, "bound": found.bound(upper=upper)}


def _by_kind(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["kind"], []).append(line)
    return found


def _live(kind: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Comparisons, verdicts, alarms on unchanged cells, and every slow cell that was missed."""
    rows = [(line, row) for line in lines for row in line["found"]["rows"] if row["metric"] == "latency"]
    unchanged = [(line, row) for line, row in rows if row["cell"] != line["target"]]
    slow = [(line, row) for line, row in rows if row["cell"] == line["target"]]
    wrong = [row["cell"] for _, row in unchanged if row["verdict"] in ("worse", "better")]
    alarm, seen = (
        Found(len(wrong), len(unchanged), len(lines), len(unchanged)),
        Found(sum(row["verdict"] == "worse" for _, row in slow), len(slow), len(lines), len(slow)),
    )
    return {
        "kind": kind,
        "comparisons": len(lines),
        "alarm": _shown(alarm, upper=True),
        "alarms": wrong,
        "seen": _shown(seen, upper=False),
        "missed": [[row["cell"], row["verdict"], row["ratio"]] for _, row in slow if row["verdict"] != "worse"],
        "seconds": median([line["found"]["seconds"] for line in lines]),
    }


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Keeps an evaluation beside what it was made of."""
    path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def read(path: Path) -> dict[str, Any]:
    """A kept evaluation."""
    data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return data


def words(data: Mapping[str, Any]) -> str:
    """Both tables in Markdown."""
    return f"{_pairs_table(data['pairs'])}\n\n{_live_table(data['live'])}"


def _pairs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ("noise", "rules", "pairs", "draws", "false alarms a cell", "comparisons of 24 with any",
             f"nights of {NIGHT} with any", "+3 % found", "+5 % found", "+10 % found")  # fmt: skip
    return table(heads, [_pairs_row(row) for row in rows if row["cell"]["pairs"]])


def _pairs_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["class"],
        row["rules"],
        str(row["cell"]["pairs"]),
        str(row["comparison"]["draws"]),
        *(_rate(row[name], "≤") for name in ("cell", "comparison", "night")),
        *(_found(row[kind]) for kind in NEAR),
    )


def _rate(shown: Mapping[str, Any], sign: str) -> str:
    if shown["rate"] is None:
        return f"too few pairs ({shown['pairs']})"
    bound = f" ({sign} {_percent(shown['bound'])})" if shown["independent"] else ""
    return f"{_percent(shown['rate'])}{bound}"


def _found(shown: Mapping[str, Any]) -> str:
    text = _rate(shown, "≥")
    if shown["rate"] is None:
        return text
    near = shown["near"]
    beside = f"; of the {shown['near_cells']} cells nearest, {_percent(near['rate'])}" if near and near["draws"] else ""
    return f"{text}, true effect {_percent(shown['effect'])}{beside}"


def _live_table(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ("kind", "comparisons", "verdicts on unchanged cells", "false alarms", "slow cells found", "median time")
    return table(heads, [_live_row(row) for row in rows])


def _live_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        "identical code" if row["kind"] == SAME else f"one cell +{row['kind']} %",
        str(row["comparisons"]),
        str(row["alarm"]["draws"]),
        f"{row['alarm']['hits']}: {_rate(row['alarm'], '≤')}",
        "" if row["kind"] == SAME else f"{row['seen']['hits']} of {row['seen']['draws']}: {_rate(row['seen'], '≥')}",
        f"{row['seconds']:.0f} s",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
