"""A run file as data, or a sentence that says where it is broken."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from bench.errors import CannotDo
from bench.record import Key, MalformedRecord, Record, RunEnd, RunHeader, from_json

MAX_LINE = 16 * 2**20  # bytes; a record of 400 rounds of 5 metrics has 0.2 MB, a header with 50,000 cell ids 5 MB
MAX_DEPTH = 16  # the deepest honest line has 5 levels; the parser's own recursion ends near 1,000
MAX_BRACKETS = 200_000  # lists and tables in one line; a header with 50,000 left out combinations has 50,000
MAX_LINES = 200_000  # the largest suite so far has some thousand cells
MAX_READINGS = 500  # in one record; about 30 metrics exist
MAX_ITEMS = 40_000_000  # numbers and texts in a file, counted by commas: some 2,000 cells of 400 rounds of 5 metrics

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
# Possessive, and content with a string that never ends: one pass over whatever a stranger wrote.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


@dataclass(frozen=True)
class Run:
    """A stored run. `records` has one record a key, in file order; `finished` is False for a run cut short."""

    header: RunHeader
    records: tuple[Record, ...]
    finished: bool
    path: Path

    @property
    def machine(self) -> str:
        """The id of the machine it was measured on."""
        return str(self.header.machine.get("id", ""))


def check_id(text: object, what: str) -> str:
    """A run's or machine's id before it becomes a path. Raises CannotDo where it could be anything else."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise CannotDo(
            f"{what} {str(text)[:60]!r} cannot name a file; "
            "an id has 1 to 128 of a-z 0-9 . _ - and begins with a letter or digit"
        )
    return text


def read_run(path: Path) -> Run:
    """The run in a file. A last line without its newline is a torn write and is left out.

    Of several records with one key the last counts, but an `ok` stands. Raises CannotDo naming file and line.
    """
    header: RunHeader | None = None
    end: RunEnd | None = None
    records: dict[Key, Record] = {}
    items = 0
    for number, raw in _numbered(path):
        items += raw.count(b",")
        if end is not None or items > MAX_ITEMS:
            _corrupt(path, number, "a line after the end of the run" if end else f"more than {MAX_ITEMS:,} values")
        line = parse(path, number, raw)
        if header is None:
            header = _first(path, line)
        elif isinstance(line, RunEnd):
            end = line
        elif isinstance(line, Record):
            keep(records, line)
        else:
            _corrupt(path, number, "a second header")
    if header is None:
        raise CannotDo(f"{path} holds no run: not even its first line is complete")
    if end is not None and end.records != len(records):
        raise CannotDo(f"{path} is corrupt: its end counts {end.records} records, but it holds {len(records)}")
    return Run(header, tuple(records.values()), end is not None, path)


def keep(records: dict[Key, Record], record: Record) -> None:
    """Puts a record in its key's place: the last one counts, but an `ok` is never replaced by a retry."""
    old = records.get(record.key)
    if old is None or old.outcome != "ok":
        records[record.key] = record


def parse(path: Path, number: int, raw: bytes) -> RunHeader | Record | RunEnd:
    """One line. Raises CannotDo naming file and line."""
    if raw.count(b"[") + raw.count(b"{") > MAX_BRACKETS or _depth(raw) > MAX_DEPTH:
        _corrupt(path, number, f"nested deeper than {MAX_DEPTH} levels, or in over {MAX_BRACKETS:,} lists")
    try:
        data: Any = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
        readings = data.get("readings") if isinstance(data, dict) else None
        if isinstance(readings, dict) and len(readings) > MAX_READINGS:
            _corrupt(path, number, f"more than {MAX_READINGS} readings in a record")
        return from_json(data)
    except MalformedRecord as error:
        _corrupt(path, number, str(error))
    except ValueError as error:  # not UTF-8, not JSON, a number of thousands of digits
        _corrupt(path, number, f"not strict JSON ({str(error)[:120]})")


def open_regular(path: Path) -> BufferedReader:
    """A file opened for reading, if it is one: a pipe of that name would block for ever. Raises CannotDo."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise CannotDo(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CannotDo(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def first_line(path: Path, source: BufferedReader) -> bytes:
    """The header's line without its newline, b"" where it is torn. Raises CannotDo where it is too long."""
    raw = source.readline(MAX_LINE + 1)
    if len(raw) > MAX_LINE:
        _corrupt(path, 1, f"longer than {MAX_LINE:,} bytes")
    return raw[:-1] if raw.endswith(b"\n") else b""


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_regular(path) as source:
        for number in range(1, MAX_LINES + 1):
            raw = source.readline(MAX_LINE + 1)
            if len(raw) > MAX_LINE:
                _corrupt(path, number, f"longer than {MAX_LINE:,} bytes")
            if not raw.endswith(b"\n"):
                return  # the end, or a write that was cut short
            yield number, raw
        if source.readline(1):
            _corrupt(path, MAX_LINES, f"more than {MAX_LINES:,} lines")


def _first(path: Path, line: RunHeader | Record | RunEnd) -> RunHeader:
    if not isinstance(line, RunHeader):
        _corrupt(path, 1, "a run begins with its header")
    check_id(line.run, f"{path}: the run's id")
    check_id(line.machine.get("id"), f"{path}: the machine's id")
    return line


def _depth(raw: bytes) -> int:
    deepest = level = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub(b"", raw)):
        level += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, level)
    return deepest


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"the literal {name} is no JSON")


def _corrupt(path: Path, number: int, why: str) -> NoReturn:
    raise CannotDo(f"{path} is corrupt at line {number}: {why}")
