"""`attnbench plan`: what a run would measure, how long it takes and how much memory, before it runs."""

from __future__ import annotations

from typing import Any

import click

from bench.options import sweep_options


@click.command("plan", short_help="Show what a run would measure, its time and memory.")
@sweep_options
@click.option("--json", "as_json", is_flag=True, help="Print data instead of a table.")
def plan(as_json: bool, **chosen: Any) -> None:
    """Shows the groups of a run with estimated time and peak memory, and every cell that cannot be measured, with why.

    Nothing is measured; no device is touched.
    """
    from bench import budget, console
    from bench.options import planned
    from bench.units import show

    made, protocol = planned(chosen)
    whole = budget.total(made, protocol)
    refused = [p for p in made.cells if p.outcome]
    if as_json:
        console.json_out(
            {
                "suite": made.suite,
                "seconds": whole.seconds,
                "peak_bytes": whole.peak,
                "cells": [p.cell.id for p in made.cells if not p.outcome],
                "refused": [{"cell": p.cell.id, "outcome": p.outcome, "why": p.note} for p in refused],
                "left_out": [dict(item) for item in made.left_out],
            }
        )
        return
    rows = []
    for group in made.groups:
        guess = budget.estimate(group, protocol)
        names = ", ".join(p.cell.subject + (" (companion)" if p.companion else "") for p in group.measured)
        rows.append([group.setting, str(len(group.measured)), show(guess.seconds, "s"), show(guess.peak, "B"), names])
    console.table(["group", "contenders", "time, at most", "peak, at most", "subjects"], rows)
    for item in refused:
        console.out(f"{item.outcome}: {item.cell.id}: {item.note}")
    for left in made.left_out:
        console.out(f"left out: {left['what']}: {left['why']}")
    measured = sum(len(group.measured) for group in made.groups)
    console.out(f"{measured} cells in {len(made.groups)} groups, at most {show(whole.seconds, 's')}.")


COMMAND = plan
