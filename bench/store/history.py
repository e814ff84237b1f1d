"""What is left of many nights: one row a cell and run, in a CSV that can be thrown away and made again from the runs.

`<results>/<machine>/history.csv` grows by the runs that are not in it yet; a run whose file has gone stays in it.
Beside it, `accepted.json` says which changes somebody has looked at and taken.
"""

from __future__ import annotations

import csv
import io
import json
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.errors import CannotDo
from bench.record import RunHeader
from bench.store.naming import read_header, run_ids
from bench.store.noise import write_json
from bench.store.reading import Run, check_id, read_run

FIELDS = ("run", "created", "commit", "suite", "protocol", "cell", "outcome", "ratio", "seconds", "peak")
MAX_BYTES = 512 * 2**20
MAX_FIELD = 2_000


@dataclass(frozen=True)
class Night:
    """One cell in one run: its ratio to the group's reference, seconds a call, peak bytes; NaN where unknown."""

    run: str
    created: str
    commit: str
    suite: str
    protocol: str
    cell: str
    outcome: str
    ratio: float
    seconds: float
    peak: float


@dataclass(frozen=True)
class Accepted:
    """A change of a cell that is no news: from that run on, with the reason."""

    cell: str
    run: str
    why: str


def machines(results: Path) -> list[str]:
    """Every machine that has runs, or had some, by id."""
    left = {path.parent.name for path in results.glob("*/history.csv")}
    return sorted(left | {path.parent.name for path in run_ids(results).values()})


def history_path(results: Path, machine: str) -> Path:
    """The derived table of a machine, there or not."""
    return results / check_id(machine, "the machine id") / "history.csv"


def update(
    results: Path, machine: str, rows_of: Callable[[Run], Iterable[Night]], told: Callable[[str], None]
) -> list[Night]:
    """All nights of a machine, with those of runs that were not known yet; the table is written anew if any were.

    A run that cannot be read is told and left out: it will be tried again. Raises CannotDo for a torn table.
    """
    path = history_path(results, machine)
    nights = _read(path) if path.is_file() else []
    known = {night.run for night in nights}
    new: list[Night] = []
    for run, file in sorted(run_ids(results).items()):
        if file.parent.name != machine or run in known:
            continue
        try:
            new += rows_of(_finished(file))
        except CannotDo as error:
            told(f"left out: {error}")
    if new:
        nights += new
        _write(path, nights)
    return nights


def _finished(file: Path) -> Run:
    run = read_run(file)
    if not run.finished:
        raise CannotDo(f"{file} was cut short")
    return run


def _read(path: Path) -> list[Night]:
    if path.stat().st_size > MAX_BYTES:
        raise CannotDo(f"{path} has more than {MAX_BYTES} bytes; remove it, it is made again from the runs")
    try:
        with path.open(encoding="utf-8", newline="") as source:
            rows = csv.reader(source, strict=True)
            if tuple(next(rows, ())) != FIELDS:
                raise ValueError("other columns")
            return [_night(row) for row in rows]
    except (ValueError, csv.Error, TypeError) as error:
        raise CannotDo(f"{path} is torn or not ours ({error}); remove it, it is made again from the runs") from None


def _night(row: list[str]) -> Night:
    if len(row) != len(FIELDS) or any(len(text) > MAX_FIELD for text in row):
        raise ValueError(f"a row of {len(row)} fields")
    ratio, seconds, peak = (float(text) if text else math.nan for text in row[-3:])
    run, created, commit, suite, protocol, cell, outcome = row[:-3]
    return Night(run, created, commit, suite, protocol, cell, outcome, ratio, seconds, peak)


def _write(path: Path, nights: Iterable[Night]) -> None:
    text = io.StringIO(newline="")
    lines = csv.writer(text)
    lines.writerow(FIELDS)
    lines.writerows([*(getattr(n, f) for f in FIELDS[:-3]), *map(_shown, (n.ratio, n.seconds, n.peak))] for n in nights)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        scratch.write_text(text.getvalue(), "utf-8", newline="")
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise CannotDo(f"{path} cannot be written: {error.strerror}") from None


def _shown(value: float) -> str:
    return f"{value:.9g}" if math.isfinite(value) else ""


def read_accepted(results: Path, machine: str) -> list[Accepted]:
    """The changes that were accepted on a machine. Raises CannotDo for a file that is not ours."""
    path = history_path(results, machine).with_name("accepted.json")
    if not path.is_file():
        return []
    try:
        return [
            Accepted(str(a["cell"]), str(a["run"]), str(a["why"]))
            for a in json.loads(path.read_text("utf-8"))["accepted"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CannotDo(f"{path} cannot be read ({type(error).__name__}); mend or remove it") from None


def write_accepted(results: Path, machine: str, accepted: Iterable[Accepted]) -> Path:
    """Keeps them, in one step. Raises CannotDo."""
    path = history_path(results, machine).with_name("accepted.json")
    rows: list[Mapping[str, str]] = [{"cell": a.cell, "run": a.run, "why": a.why} for a in accepted]
    write_json(path, {"accepted": rows})
    return path


def newest_machine(results: Path) -> str:
    """The machine of the newest run. Raises UserError or CannotDo where there is none."""
    from bench.store.naming import find

    header: RunHeader = read_header(find(results, "latest"))
    return str(header.machine.get("id"))
