"""One run becomes a folder: `index.html` that stands by itself, `figures/*.png` and `tables/*.csv` beside it."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from bench.errors import CannotDo
from bench.record import MEASURED
from bench.report import tables
from bench.report.context import Context, context
from bench.report.markup import page, part, slug
from bench.report.section import discover
from bench.store import Run, check_id


def build(run: Run, out: Path, *, baseline: Run | None = None) -> Path:
    """Write the report of `run` to `<out>/<run id>/`; the path of its index.html.

    What an earlier report of the same run left in figures/ and tables/ is replaced. Raises CannotDo where
    the run's id cannot name a folder, a section has no SECTION, or the disk does not take the files.
    """
    folder = out / check_id(run.header.run, "the run's id")
    try:
        _clear(folder)
        seen = context(run, folder, baseline)
        tables.cells(seen, folder / "tables" / "cells.csv")
        tables.samples(seen, folder / "tables" / "samples.csv")
        index = folder / "index.html"
        index.write_text(_html(seen), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise CannotDo(f"the report cannot be written to {folder}: {error.strerror}; try --out DIR") from error
    return index


def _clear(folder: Path) -> None:
    for name, pattern in (("figures", "*.png"), ("tables", "*.csv")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for old in (folder / name).glob(pattern):
            old.unlink()


def _html(seen: Context) -> str:
    script = part("page.js")
    digest = base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()
    rendered = [(section.title, section.render(seen)) for section in discover()]
    return page(
        header=seen.header,
        style=part("style.css"),
        script=script,
        script_hash=f"sha256-{digest}",
        summary=_summary(seen),
        warnings=_warnings(seen),
        parts=[{"title": title, "anchor": f"s-{slug(title)}", "body": body} for title, body in rendered if body],
    )


def _summary(seen: Context) -> str:
    header, cells = seen.header, seen.cells
    groups, subjects = cells["group"].nunique(), cells["subject"].nunique()
    return (
        f"{len(cells)} cells: {subjects} contenders over {groups} workloads, suite {header.plan.get('suite', '–')}, "
        f"on {seen.run.machine or 'an unnamed machine'}, {header.created}, commit {header.commit[:12]}"
        f"{' with uncommitted changes' if header.dirty else ''}."
    )


def _warnings(seen: Context) -> list[str]:
    """What a reader must know before any number: an unfinished run, failures, alarms."""
    records = seen.run.records
    planned: Any = seen.header.plan.get("cells", ())
    found = []
    if not seen.run.finished:
        count = len(planned) if isinstance(planned, list | tuple) else "?"
        found.append(f"This run did not finish: {len(records)} of {count} planned cells have a record.")
    failed = Counter(r.outcome for r in records if r.outcome not in (*MEASURED, "unsupported", "absent"))
    if failed:
        words = ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in failed.most_common())
        found.append(f"{_cells(sum(failed.values()))} failed ({words}); the table of every cell says why.")
    alarmed = sum(bool(record.alarms) for record in records)
    if alarmed:
        found.append(f"{_cells(alarmed)} with an alarm: a number there cannot be, or was disturbed.")
    return found


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
