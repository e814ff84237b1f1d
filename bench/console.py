"""The one place that writes to a terminal. rich is imported only where it draws something.

Answers go to standard output, everything about getting them (progress, notes, failures) to standard error.
Texts may come from a stranger's file: characters that steer a terminal are replaced before they reach one.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from bench.record import encode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

_NUMBER = re.compile(r"[+\-−×]?\d|[–-]$|$")


def clean(text: str) -> str:
    """The text with nothing but visible characters, spaces and newlines: what else is there becomes U+FFFD."""
    return "".join(
        c if c.isprintable() or c == "\n" else " " if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def out(text: str) -> None:
    """A line (or lines) of the answer."""
    _write(sys.stdout, clean(text))


def err(text: str) -> None:
    """A line about how it went."""
    _write(sys.stderr, clean(text))


def json_out(data: Any) -> None:
    """The answer as strict JSON; non-finite numbers become the strings nan, inf, -inf, as in stored runs."""
    _write(sys.stdout, json.dumps(encode(data), indent=2, allow_nan=False))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows of texts under their columns' names; columns of numbers end flush. Plain where it is not a terminal."""
    right = [all(_NUMBER.match(row[i]) for row in rows) for i in range(len(columns))]
    if is_plain(sys.stdout):
        _write(sys.stdout, _aligned([columns, *rows], right))
        return
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for name, flush in zip(columns, right, strict=True):
        drawn.add_column(Text(clean(name)), justify="right" if flush else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(clean(cell)) for cell in row))
    _rich(sys.stdout).print(drawn)


def is_plain(stream: TextIO) -> bool:
    """True where there is no terminal, or one that asks for plain text (NO_COLOR, TERM=dumb)."""
    return not stream.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


class Progress(Protocol):
    """What a long command tells while it works."""

    def start(self, total: int) -> None:
        """Work of `total` steps begins."""

    def advance(self, label: str, done: int, total: int, left_s: float | None) -> None:
        """`done` steps are done, `label` is what goes on now, `left_s` the seconds that are left, if known."""

    def note(self, text: str) -> None:
        """Something worth a line of its own."""

    def stop(self) -> None:
        """The work is over, or given up."""


def progress() -> Progress:
    """A live line on a terminal, plain lines elsewhere; both on standard error."""
    return _PlainProgress() if is_plain(sys.stderr) else _LiveProgress()


class _PlainProgress:
    def start(self, total: int) -> None:
        err(f"{total} to do")

    def advance(self, label: str, done: int, total: int, left_s: float | None) -> None:
        err(f"[{done}/{total}] {label}{_left(left_s)}")

    def note(self, text: str) -> None:
        err(text)

    def stop(self) -> None:
        sys.stderr.flush()


class _LiveProgress:
    def __init__(self) -> None:
        self._bar: RichProgress | None = None

    def start(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        text = TextColumn("{task.description}", markup=False)
        self.stop()
        self._bar = Bar(BarColumn(24), MofNCompleteColumn(), text, console=_rich(sys.stderr), transient=True)
        self._bar.add_task("", total=total)
        self._bar.start()

    def advance(self, label: str, done: int, total: int, left_s: float | None) -> None:
        if self._bar is None:
            self.start(total)
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=done, total=total, description=clean(f"{label}{_left(left_s)}"))

    def note(self, text: str) -> None:
        if self._bar is None:
            err(text)
        else:
            self._bar.console.print(clean(text), markup=False, highlight=False)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f", {minutes} min {rest:02d} s left" if minutes else f", {rest} s left"


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    cells = [[clean(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    shaped = ([_pad(*fields) for fields in zip(row, widths, right, strict=True)] for row in cells)
    return "\n".join("  ".join(row).rstrip() for row in shaped)


def _pad(text: str, width: int, flush: bool) -> str:
    return text.rjust(width) if flush else text.ljust(width)


def _rich(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, soft_wrap=False)


def _write(stream: TextIO, text: str) -> None:
    """A stream that cannot say a letter (a C locale has no µ) gets its escape, never an exception.

    Flushed at once: that the reader of a pipe has gone is then known here, and no longer at exit.
    """
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
