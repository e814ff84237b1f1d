"""The one writer of a run file: it holds the file's lock for the whole run and appends group by group."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from bench.errors import CannotDo
from bench.record import Key, Line, Record, RunEnd, RunHeader, to_json
from bench.store.reading import MAX_LINE, Run, check_id, keep, read_run


@dataclass(frozen=True)
class _Tail:
    """The last group of a resumed file: where its lines begin, and what it has records of."""

    begins: int
    keys: frozenset[Key]


@dataclass
class Writer:
    """An open run file, a context. Made by `create` or `resume`; an append is on disk whole or not at all."""

    path: Path
    _descriptor: int
    _stored: dict[Key, Record] = field(default_factory=dict)
    _tail: _Tail | None = None

    @classmethod
    def create(cls, results: Path, header: RunHeader) -> Self:
        """A new file `<results>/<machine>/<run>.jsonl` with its header. Raises CannotDo."""
        path = _new_path(results, header)
        descriptor = _open(path, os.O_CREAT | os.O_EXCL)
        try:
            _lock(descriptor, path)
            _write(descriptor, path, [header])
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)  # a run without a header is no run
            raise
        return cls(path, descriptor)

    @classmethod
    def resume(cls, path: Path) -> Self:
        """An unfinished file opened again, a torn last line cut off. Raises CannotDo where it is in use or broken."""
        descriptor = _open(path, 0)
        try:
            _lock(descriptor, path)
            run = read_run(path)
            os.ftruncate(descriptor, _whole_lines(path))
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, {record.key: record for record in run.records}, _last_group(run))

    def run(self) -> Run:
        """What the file holds now."""
        return read_run(self.path)

    def append(self, records: Iterable[Record]) -> None:
        """Stores a group's records in one write; a record whose key already has an `ok` is left out.

        What a torn write left of this very group is replaced first, so that no ratio mixes the rounds of two
        attempts. Raises CannotDo where the records do not fit, and the file is as it was before the write.
        """
        group = list(records)
        if self._tail is not None and self._tail.keys <= {record.key for record in group}:
            os.ftruncate(self._descriptor, self._tail.begins)
            self._stored = {key: old for key, old in self._stored.items() if key not in self._tail.keys}
        self._tail = None
        fresh: dict[Key, Record] = {}
        for record in group:
            if record.key not in self._stored or self._stored[record.key].outcome != "ok":
                keep(fresh, record)
        _write(self._descriptor, self.path, fresh.values())
        self._stored |= fresh

    def finish(self, at: float) -> None:
        """Says that everything planned has a record. `at` in seconds since the epoch."""
        _write(self._descriptor, self.path, [RunEnd(at=at, records=len(self._stored))])

    def close(self) -> None:
        """Gives the file and its lock back; harmless when done twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _new_path(results: Path, header: RunHeader) -> Path:
    folder = results / check_id(header.machine.get("id"), "the machine's id")
    path = folder / f"{check_id(header.run, 'the run id')}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _refuse(folder, error)
    if folder.is_symlink():
        raise CannotDo(f"{folder} is a link; runs are written into folders inside {results} only: remove the link")
    return path


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o644)
    except OSError as error:
        _refuse(path, error)


def _lock(descriptor: int, path: Path) -> None:
    """Takes the file for this process; the holder's pid stands in /proc/locks. Raises CannotDo naming it."""
    import fcntl  # not on Windows, where runs are only read

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(os.fstat(descriptor))
        raise CannotDo(f"{path} is being written by another run ({holder}); wait for it or end it") from None


def _holder(file: os.stat_result) -> str:
    locks = Path("/proc/locks")
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    lines = locks.read_text().splitlines() if locks.exists() else []
    return next((f"pid {words[4]}" for words in map(str.split, lines) if place in words), "pid unknown")


def _write(descriptor: int, path: Path, lines: Iterable[Line]) -> None:
    """All lines in one write, or none: after a short one the file gets its old size back. Raises CannotDo."""
    encoded = [json.dumps(to_json(line), allow_nan=False, separators=(",", ":")).encode() + b"\n" for line in lines]
    if any(len(line) > MAX_LINE for line in encoded):
        raise CannotDo(f"{path}: a line of more than {MAX_LINE:,} bytes could not be read again; split the run")
    data = b"".join(encoded)
    before = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, data) if data else 0
    except OSError as error:  # nothing was written
        _refuse(path, error)
    if written != len(data):
        os.ftruncate(descriptor, before)
        raise CannotDo(f"{path}: only {written:,} of {len(data):,} bytes fitted; make room on the disk and --resume")


def _whole_lines(path: Path) -> int:
    """Bytes up to and with the last newline."""
    return path.read_bytes().rfind(b"\n") + 1


def _last_group(run: Run) -> _Tail | None:
    """The records at the end of the file that share a group."""
    if not run.records:
        return None
    raw = run.path.read_bytes()
    group = run.records[-1].cell.get("group")
    begins, keys = len(raw), set()
    lines = raw.splitlines(keepends=True)[1:]
    for line in reversed(lines):
        data = json.loads(line)
        if data["kind"] != "record" or data["cell"].get("group") != group:
            break
        begins -= len(line)
        keys.add(Key(**data["key"]))
    return _Tail(begins, frozenset(keys))


def _refuse(path: Path, error: OSError) -> NoReturn:
    advice = {
        errno.ENOSPC: "the disk is full; make room and --resume",
        errno.EFBIG: "the file may not grow further (a limit on file size); raise it and --resume",
        errno.EDQUOT: "the quota is used up; make room and --resume",
        errno.EROFS: "the file system is read-only; choose another folder with --results",
        errno.EACCES: "permission denied; choose another folder with --results",
        errno.EEXIST: "it exists already; a run never overwrites another",
        errno.ELOOP: "it is a link; runs are written to files of their own only",
        errno.ENOENT: "there is no such file",
    }.get(error.errno or 0, error.strerror or str(error))
    raise CannotDo(f"{path} cannot be written: {advice}") from None
