"""Which run is meant: a path, the beginning of an id, `latest`, `latest~1`, `baseline`."""

from __future__ import annotations

import difflib
import os
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

from bench.errors import CannotDo, UserError
from bench.record import RunHeader
from bench.store.reading import Run, check_id, first_line, open_regular, parse, read_run

BASELINES = "baselines"
_LATEST = re.compile(r"latest(?:~(\d{1,6}))?")
# What our own writer begins a file with; of 10,000 runs only this is read. Any other layout is parsed whole.
_CREATED = re.compile(rb'\{"kind":"header","schema":\d+,"run":"[^"\\]*","created":"([^"\\]*)"')
_SHOWN = 5  # ids in a message


def results_folder(option: str | Path | None) -> Path:
    """Where runs lie: `--results`, else ATTNBENCH_RESULTS, else ./results."""
    return Path(option or os.environ.get("ATTNBENCH_RESULTS") or "results")


def find(results: Path, name: str, machine: str | None = None) -> Path:
    """The file of the run that `name` means.

    `baseline` is that of `machine`, by default of the machine of the newest run. Raises UserError, with
    names near to it, where no run or more than one fits; CannotDo where there is no baseline.
    """
    if name == "baseline":
        path = baseline_path(results, machine or read_header(_newest(results, 0)).machine.get("id"))
        if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
            raise CannotDo(f"there is no baseline for {path.stem}; make a run one with: attnbench baseline set RUN")
        return path
    latest = _LATEST.fullmatch(name)
    if latest:
        return _newest(results, int(latest[1] or 0))
    if name.endswith(".jsonl") or "/" in name or os.sep in name:
        if not Path(name).is_file():
            raise UserError(f"there is no run file {name}")
        return Path(name)
    return _by_prefix(results, name)


def run_ids(results: Path) -> dict[str, Path]:
    """Every stored run's id (its file's name) and file; links are not followed."""
    return {path.stem: path for path in _files(results)}


def baseline_path(results: Path, machine: object) -> Path:
    """The file of a machine's baseline, there or not. Raises CannotDo for an id that names no file."""
    return results / BASELINES / f"{check_id(machine, 'the machine id')}.jsonl"


def baseline(results: Path, machine: str | None = None) -> Run:
    """A machine's baseline. Raises CannotDo where there is none or it is cut short: nothing can be held against it."""
    path = find(results, "baseline", machine)
    run = read_run(path)
    if not run.finished:
        raise CannotDo(f"{path} is cut short; set it again with: attnbench baseline set RUN")
    return run


def set_baseline(results: Path, run: Run) -> Path:
    """Copies a finished run to its machine's baseline, in one step. Raises CannotDo."""
    path = baseline_path(results, run.machine)
    if not run.finished:
        raise CannotDo(f"run {run.header.run} was cut short and can be no baseline; finish it with --resume")
    scratch = path.with_name(f".{path.stem}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.is_symlink():
            raise CannotDo(f"{path.parent} is a link; baselines are written inside {results} only: remove the link")
        with open_regular(run.path) as source:
            scratch.write_bytes(source.read())
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise CannotDo(f"{path} cannot be written: {error.strerror}") from None
    return path


def read_header(path: Path) -> RunHeader:
    """Only the first line of a run. Raises CannotDo."""
    with open_regular(path) as source:
        line = parse(path, 1, first_line(path, source))
    if not isinstance(line, RunHeader):
        raise CannotDo(f"{path} is corrupt at line 1: a run begins with its header")
    return line


def _files(results: Path) -> list[Path]:
    folders = [entry for entry in _entries(results) if entry.is_dir(follow_symlinks=False) and entry.name != BASELINES]
    entries = (entry for folder in folders for entry in _entries(folder.path))
    return [Path(e.path) for e in entries if e.name.endswith(".jsonl") and e.is_file(follow_symlinks=False)]


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CannotDo(f"{folder} cannot be read: {error.strerror}") from None


def _newest(results: Path, back: int) -> Path:
    dated = sorted(((when, path) for path in _files(results) if (when := _created(path))), reverse=True)
    if not dated:
        raise UserError(f"no run is stored in {results}; measure one with: attnbench run --suite quick")
    if back >= len(dated):
        raise UserError(
            f"latest~{back} is further back than the {len(dated)} stored runs; the oldest is latest~{len(dated) - 1}"
        )
    return dated[back][1]


def _created(path: Path) -> datetime | None:
    """When a run began; None for a file whose very first write was cut short."""
    with open_regular(path) as source:
        begins = _CREATED.match(source.peek(4096))
        if begins:
            text = begins[1].decode("ascii", "replace")
        else:
            raw = first_line(path, source)
            if not raw:
                return None
            text = _header_created(path, raw)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise CannotDo(f"{path}: {text[:40]!r} is no time; move the file away, or name runs by id") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _header_created(path: Path, raw: bytes) -> str:
    line = parse(path, 1, raw)
    if not isinstance(line, RunHeader):
        raise CannotDo(f"{path} is corrupt at line 1: a run begins with its header; move the file away")
    return line.created


def _by_prefix(results: Path, name: str) -> Path:
    known = run_ids(results)
    fitting = [known[name]] if name in known else [path for run, path in known.items() if run.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        more = " …" if len(fitting) > _SHOWN else ""
        listed = ", ".join(sorted(path.stem for path in fitting)[:_SHOWN])
        raise UserError(f"{len(fitting)} runs begin with {name!r}: {listed}{more}; write more of the id")
    near = difflib.get_close_matches(name, ("latest", "baseline"), n=1) + _nearest(name, known)
    hint = f"nearest: {', '.join(near)}" if near else "none is stored; measure one with: attnbench run --suite quick"
    raise UserError(f"no run begins with {name!r} in {results}; {hint}")


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    """Ids that hold the name anywhere, else those that agree longest from the beginning, newest first."""
    return sorted(known, key=lambda run: (name in run, _agreement(run, name), run), reverse=True)[:3]


def _agreement(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda letters: letters[0] == letters[1], zip(one, other, strict=False)))
