"""`attnbench report`: one stored run as a page that opens anywhere, with pictures and tables beside it."""

from __future__ import annotations

from pathlib import Path

import click

from bench.completion import runs


@click.command("report", short_help="Write a stored run as a web page, pictures and tables.")
@click.argument("run", default="latest", shell_complete=runs)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reports"),
    show_default=True,
    help="Folder in which the report's own folder is made.",
)
@click.option("--baseline", default=None, metavar="RUN", help="Also show what changed against this run.")
@click.option(
    "--results",
    default=None,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where runs are stored (default: ATTNBENCH_RESULTS, else ./results).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report's paths as data.")  # fmt: skip
def report(run: str, out: Path, baseline: str | None, results: Path | None, as_json: bool) -> None:
    """Writes the report of RUN to DIR/<run id>/ and prints the path of its index.html.

    RUN is a path, the beginning of a run's id, latest, latest~1 or baseline.
    """
    from bench import console, store
    from bench.report.build import build

    folder = store.results_folder(results)
    seen = store.read_run(store.find(folder, run))
    before = None if baseline is None else store.read_run(store.find(folder, baseline, seen.machine))
    index = build(seen, out, baseline=before)
    if as_json:
        found = {name: sorted(str(path) for path in index.parent.glob(f"{name}/*.*")) for name in ("figures", "tables")}
        console.json_out({"run": seen.header.run, "index": str(index), **found})
    else:
        console.out(str(index))


COMMAND = report
