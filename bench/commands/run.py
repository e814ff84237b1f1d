"""`attnbench run`: measures, keeps, and shows the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bench.completion import runs
from bench.options import sweep_options

FINE = ("ok", "unsupported", "absent")


@click.command("run", short_help="Measure a suite, or single cells, and store the run.")
@sweep_options
@click.option("--results", default=None, metavar="DIR", help="Where runs are kept [ATTNBENCH_RESULTS, else ./results].")
@click.option(
    "--resume",
    default=None,
    metavar="RUN",
    shell_complete=runs,
    help="Go on with an interrupted run; its own options apply.",
)
@click.option("--metric", "extra", multiple=True, help="Also read an opt-in metric (attnbench list metrics).")
@click.option(
    "--max-memory",
    default=None,
    metavar="SIZE",
    help="Also find the longest sequence whose step stays within it, as in 64MiB.",
)
@click.option("--timeout", type=float, default=None, metavar="SECONDS", help="Deadline of one step.")
@click.option("--clock", default=None, help="On CUDA: events, graph or wall.")
@click.option("--wait", is_flag=True, help="Wait while another run is measuring on this machine.")
@click.option("--strict", is_flag=True, help="Exit 1 when a cell is wrong, imprecise or failed.")
@click.option("--report", "report", is_flag=True, help="Also write the report, to ./reports.")
@click.option("--json", "as_json", is_flag=True, help="Print the run's path and outcomes as data.")
def run(strict: bool, report: bool, as_json: bool, **chosen: Any) -> int:
    """Measures every cell of a suite and stores each group's records as soon as they are there.

    Interrupted at any moment it loses at most the group under way; --resume goes on where it stopped.
    Ctrl-C keeps what is measured and exits 130.
    """
    from bench import console
    from bench.session import measure_run

    done = measure_run(chosen)
    page = _report(done) if report else None
    if as_json:
        outcomes = {record.key.cell: record.outcome for record in done.records}
        console.json_out({"run": done.header.run, "path": str(done.path), "report": page, "outcomes": outcomes})
    else:
        _show(done)
        console.out(
            f"run: {done.path}" + (f"\nreport: {page}" if page else f"\nreport: attnbench report {done.header.run}")
        )
    return 1 if strict and any(record.outcome not in FINE for record in done.records) else 0


def _show(done: Any) -> None:
    from bench import console
    from bench.summary import COLUMNS, groups, rows

    for setting, records in groups(done.records).items():
        console.out(f"\n{setting}")
        console.table(COLUMNS, rows(records))
    console.out("")


def _report(done: Any) -> str:
    from bench.report.build import build

    return str(build(done, Path("reports")))


COMMAND = run
