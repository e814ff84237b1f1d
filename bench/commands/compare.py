"""`attnbench compare`: what became better or worse between two stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.completion import runs

if TYPE_CHECKING:
    from bench.compare import Comparison
    from bench.record import RunHeader
    from bench.store import Run


@click.command("compare", short_help="Show what became better or worse between two stored runs.")
@click.argument("before", metavar="A", default="baseline", shell_complete=runs)
@click.argument("after", metavar="B", default="latest", shell_complete=runs)
@click.option(
    "--noise-floor", default=None, metavar="PERCENT", help="How far timed ratios must move, as in 2.5% or 120%."
)
@click.option(
    "--rules",
    default=None,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file of thresholds by cell and metric, and of accepted changes (see docs/ci.md).",
)
@click.option("--all", "everything", is_flag=True, help="Show also what stayed the same.")
@click.option(
    "--results",
    default=None,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where runs are stored (default: ATTNBENCH_RESULTS, else ./results).",
)
@click.option("--json", "as_json", is_flag=True, help="Print data instead of a table.")
@click.pass_context
def compare(
    ctx: click.Context,
    before: str,
    after: str,
    noise_floor: str | None,
    rules: Path | None,
    everything: bool,
    results: Path | None,
    as_json: bool,
) -> None:
    """Holds run B against run A, metric by metric. Exits 1 where something is worse, broke or is gone.

    A and B are paths, beginnings of run ids, latest, latest~1 or baseline. Bytes, operations and outcomes count
    at any change, errors against their budget. Times are compared as ratios to each group's reference, and are
    unclear unless they moved by more than the noise between separate runs: unclear is never a finding.
    """
    from bench import store
    from bench.compare import FINDINGS, compare
    from bench.gate import Gate, load
    from bench.units import fraction

    gate = load(rules) if rules else Gate()
    floor = None if noise_floor is None else fraction(noise_floor)
    folder = store.results_folder(results)
    later = store.read_run(store.find(folder, after))
    earlier = _earlier(folder, before, later)
    found = compare(earlier, later, noise_floor=floor, floor_of=gate.share)
    found = [gate.judged(one) for one in found]
    if as_json:
        _print_json(earlier, later, found)
    else:
        _print_table(earlier, later, found, everything)
    if any(c.verdict in FINDINGS for c in found):
        ctx.exit(1)


def _earlier(folder: Path, name: str, later: Run) -> Run:
    """Run A; where it is the baseline, that of B's machine."""
    from bench import store

    return store.baseline(folder, later.machine) if name == "baseline" else store.read_run(store.find(folder, name))


def _print_json(earlier: Run, later: Run, found: list[Comparison]) -> None:
    from dataclasses import asdict

    from bench import console
    from bench.compare import FINDINGS

    console.json_out(
        {
            "before": earlier.header.run,
            "after": later.header.run,
            "differences": _differences(earlier.header, later.header),
            "findings": sum(c.verdict in FINDINGS for c in found),
            "comparisons": [asdict(c) for c in found],
        }
    )


def _print_table(earlier: Run, later: Run, found: list[Comparison], everything: bool) -> None:
    from collections import Counter

    from bench import console
    from bench.compare import VERDICTS

    counts = Counter(c.verdict for c in found)
    shown = sorted((c for c in found if everything or c.verdict != "same"), key=lambda c: VERDICTS.index(c.verdict))
    units = {name: info.unit for name, info in {**earlier.header.metrics, **later.header.metrics}.items()}
    console.out(f"{later.header.run} held against {earlier.header.run}")
    for line in _differences(earlier.header, later.header):
        console.out(f"  {line}")
    if shown:
        columns = ["verdict", "metric", "before", "after", "change", "cell", "why"]
        console.table(columns, [_row(c, units.get(c.metric, "1")) for c in shown])
    console.out(", ".join(f"{counts[v]} {v.replace('_', ' ')}" for v in VERDICTS if counts[v]) or "nothing to compare")
    for line in _means(found, units):
        console.out(line)


def _row(c: Comparison, unit: str) -> list[str]:
    from bench.units import percent

    change = "–" if c.ratio is None else percent(c.ratio)
    return [
        c.verdict.replace("_", " "),
        c.metric,
        _text(c.before, unit),
        _text(c.after, unit),
        change,
        c.key.cell,
        c.why,
    ]


def _text(value: Any, unit: str) -> str:
    from bench.units import show

    return value if isinstance(value, str) else show(value, unit)


def _means(found: list[Comparison], units: dict[str, str]) -> list[str]:
    """One line a metric: the mean change over the cells both runs have, and how many could not take part."""
    import math

    from bench.compare import summary
    from bench.units import percent

    lines = []
    for metric in dict.fromkeys(c.metric for c in found if c.metric in units):
        mean = summary(found, metric)
        if not math.isnan(mean.ratio):
            left = f"; incomplete: {len(mean.left_out)} more have no ratio" if mean.left_out else ""
            lines.append(f"{metric}: {percent(mean.ratio)} (geometric mean of {len(mean.used)} cells{left})")
    return lines


def _differences(before: RunHeader, after: RunHeader) -> list[str]:
    """What else is not the same about the two runs, so that a change is not blamed on the kernels."""
    from bench.compare import differing

    commits = differing(
        {"commit": before.commit, "dirty": before.dirty}, {"commit": after.commit, "dirty": after.dirty}
    )
    machines = differing({"machine": before.machine.get("id")}, {"machine": after.machine.get("id")})
    return [*machines, *commits, *differing(before.environment, after.environment)]


COMMAND = compare
