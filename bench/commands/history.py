"""`attnbench history`: night after night, where a cell changed level and stayed there."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bench.history import Change, Trend


@click.command("history", short_help="Show where a machine's cells changed level, night after night.")
@click.option("--machine", default=None, help="A machine's id (default: the newest run's).")
@click.option("--page/--no-page", default=True, help="Write the trend page [default: yes].")
@click.option(
    "--out",
    default=Path("reports"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the page goes.",
)
@click.option(
    "--accept", "accepted", multiple=True, metavar="CELL", help="Take a cell's newest change as it is; repeatable."
)
@click.option("--why", default="", help="With --accept: the reason, kept beside the history.")
@click.option(
    "--results",
    default=None,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where runs are stored [ATTNBENCH_RESULTS, else ./results].",
)
@click.option("--json", "as_json", is_flag=True, help="Print data instead of a table.")  # fmt: skip
@click.pass_context
def history(ctx: click.Context, /, machine: str | None, results: Path | None, **chosen: Any) -> None:
    """Reads every finished run of a machine and follows each cell's ratio to its reference over them.

    A level is believed after two nights on it and charged to the first; a lone spike is none. Exits 1 where a cell
    is on a worse level that nobody has accepted.
    """
    from bench import console, store
    from bench.history import alarms, nights_of, trends

    folder = store.results_folder(results)
    name = machine or store.newest_machine(folder)
    if machine is not None and machine not in store.machines(folder):
        from bench.errors import unknown

        raise unknown("machine with runs", machine, store.machines(folder))
    nights = store.update(folder, name, nights_of, console.err)
    taken = store.read_accepted(folder, name)
    found = trends(nights, taken)
    if chosen["accepted"]:
        new = _taken(found, chosen["accepted"], chosen["why"])
        store.write_accepted(folder, name, [*taken, *new])
        found = trends(nights, [*taken, *new])
    page = _page(found, name, chosen["out"]) if chosen["page"] else None
    worse = alarms(found)
    if chosen["as_json"]:
        console.json_out(_data(found, name, page))
    else:
        _show(found, worse, name, page)
    ctx.exit(1 if worse else 0)


def _taken(found: list[Trend], cells: tuple[str, ...], why: str) -> list[Any]:
    """The acceptance of each named cell's newest change. Raises UserError for a cell that has none, or no reason."""
    from bench.errors import UserError, unknown
    from bench.store import Accepted

    if not why:
        raise UserError("--accept needs --why: people will ask")
    known = {trend.cell: trend for trend in found}
    accepted = []
    for cell in cells:
        if cell not in known:
            raise unknown("cell in this history", cell, known)
        if not known[cell].changes:
            raise UserError(f"{cell} has not changed level; there is nothing to accept")
        accepted.append(Accepted(cell, known[cell].changes[-1].run, why))
    return accepted


def _page(found: list[Trend], machine: str, out: Path) -> Path:
    from bench.report.trends import build_trends

    return build_trends(found, machine, out)


def _data(found: list[Trend], machine: str, page: Path | None) -> dict[str, Any]:
    return {
        "machine": machine,
        "page": str(page) if page else None,
        "cells": len(found),
        "changes": [asdict(change) for trend in found for change in trend.changes],
    }


def _show(found: list[Trend], worse: list[Change], machine: str, page: Path | None) -> None:
    from bench import console
    from bench.units import percent

    changes = [change for trend in found for change in trend.changes if change.current]
    columns = ("cell", "verdict", "change", "nights", "first run on it", "commits")
    rows = [
        (c.cell, c.verdict, percent(c.ratio), str(c.nights), c.run, f"{c.commit_before[:8]}..{c.commit[:8]}")
        for c in sorted(changes, key=lambda c: (c.verdict != "worse", c.cell))
    ]
    if rows:
        console.table(columns, rows)
        console.out("")
    nights = len({night.run for trend in found for night in trend.nights})
    console.out(
        f"{machine}: {len(found)} cells over {nights} nights; {len(worse)} on a worse level nobody has accepted"
    )
    if page:
        console.out(f"page: {page}")


COMMAND = history
