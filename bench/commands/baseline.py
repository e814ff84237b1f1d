"""`attnbench baseline`: which run the others are held against, one for each machine."""

from __future__ import annotations

from pathlib import Path

import click

from bench.completion import runs

_results = click.option(
    "--results",
    default=None,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where runs are stored (default: ATTNBENCH_RESULTS, else ./results).",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print data instead of a line.")


@click.group("baseline", short_help="Set or show the run that others are held against.")
def baseline() -> None:
    """The run that `attnbench compare` holds others against; each machine has its own."""


@baseline.command("set")
@click.argument("run", default="latest", shell_complete=runs)
@_results
@_json
def set_(run: str, results: Path | None, as_json: bool) -> None:
    """Copies RUN (a path, the beginning of an id, latest, latest~1) to its machine's baseline."""
    from bench import console, store

    folder = store.results_folder(results)
    chosen = store.read_run(store.find(folder, run))
    path = store.set_baseline(folder, chosen)
    if as_json:
        console.json_out({"machine": chosen.machine, "run": chosen.header.run, "path": str(path)})
    else:
        console.out(f"{chosen.header.run} is now the baseline of {chosen.machine} ({path})")


@baseline.command("show")
@click.option("--machine", default=None, help="A machine's id (default: the newest run's).")
@_results
@_json
def show(machine: str | None, results: Path | None, as_json: bool) -> None:
    """Shows which run is the baseline."""
    from bench import console, store

    run = store.baseline(store.results_folder(results), machine)
    found = {
        "machine": run.machine,
        "run": run.header.run,
        "created": run.header.created,
        "commit": run.header.commit,
        "cells": len(run.records),
        "path": str(run.path),
    }
    if as_json:
        console.json_out(found)
    else:
        console.out("\n".join(f"{name}: {value}" for name, value in found.items()))


COMMAND = baseline
