"""One child process: started, listened to, given deadlines, and its death explained."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from bench.errors import CannotDo

LARGEST_LINE = 64 * 2**20  # an event longer than this is no event of ours
KEPT_OUTPUT = 300  # characters of a dead child's standard error that its note quotes


@dataclass(frozen=True)
class Place:
    """Which Python a child runs in, and the folder it imports this house from ("": as that Python finds it)."""

    python: str = sys.executable
    root: str = ""

    def environment(self) -> dict[str, str]:
        """What the child must find in its environment for that."""
        before = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": os.pathsep.join(filter(None, (self.root, before)))} if self.root else {}


HERE = Place()


@dataclass(frozen=True)
class Death:
    """How a child ended without saying `end`: the outcome of the cell it was at, and a sentence."""

    outcome: str
    note: str


@dataclass
class Child:
    """A worker under way. Iterate `events`; afterwards `death` is None only if it said `end`."""

    process: subprocess.Popen[bytes]
    pipe: int
    errors: BinaryIO
    kills_before: int
    death: Death | None = None
    timed_out: bool = False
    _buffer: bytearray = field(default_factory=bytearray)

    def events(self, deadline_s: Any) -> Iterator[dict[str, Any]]:
        """Its events in order until it ends; deadline_s(event) gives the seconds until the next one must come."""
        limit = deadline_s({"e": "start", "phase": "import"})
        due = time.monotonic() + limit
        while True:
            line = self._line(due)
            if line is None:
                break
            event = _event(line)
            if event is None:
                self.stop()
                self.death = Death("crashed", "something else than the harness wrote to its event pipe")
                return
            if event["e"] == "end":
                self._finish()
                return
            yield event
            limit = deadline_s(event)
            due = time.monotonic() + limit  # from here: what the listener did meanwhile is not the child's time
        self.death = self._explain(limit)

    def say(self, command: Mapping[str, Any]) -> None:
        """Sends a line to a live child; one that is gone is noticed when its events are read."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(json.dumps(command).encode() + b"\n")
                self.process.stdin.flush()

    def stop(self) -> None:
        """Kills it and everything it started."""
        self._kill_group()
        self._finish()

    def _line(self, due: float) -> bytes | None:
        """The next whole line; None when the child is gone or the deadline passed."""
        while b"\n" not in self._buffer:
            left = due - time.monotonic()
            if left <= 0:
                self.timed_out = True
                return None
            ready, _, _ = select.select([self.pipe], [], [], min(left, 0.2))
            if ready:
                data = os.read(self.pipe, 2**20)
                if not data:
                    return None
                self._buffer += data
                if len(self._buffer) > LARGEST_LINE:
                    raise CannotDo("a child sent an event of more than 64 MiB")
            elif self.process.poll() is not None:  # a grandchild may hold the pipe open for ever
                return self._rest()
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        return bytes(line)

    def _rest(self) -> bytes | None:
        """What was written before it died and not yet read."""
        ready, _, _ = select.select([self.pipe], [], [], 0)
        data = os.read(self.pipe, 2**20) if ready else b""
        self._buffer += data
        if b"\n" not in self._buffer:
            return None
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        return bytes(line)

    def _explain(self, limit: float) -> Death:
        if self.timed_out:
            self.stop()
            return Death("timeout", f"nothing heard for {limit:.0f} s")
        said = self._finish()
        code = self.process.returncode
        if code == -signal.SIGKILL:
            if out_of_memory_kills() > self.kills_before:
                return Death("out_of_memory", "killed by the kernel's out-of-memory killer")
            return Death("killed", "SIGKILL from outside; the kernel's out-of-memory killer was not it")
        if code < 0:
            return Death("crashed", f"died of {signal.Signals(-code).name}{said}")
        return Death("crashed", f"left with exit code {code} before it was done{said}")

    def _said(self) -> str:
        self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, self.errors.tell() - 4096))
        lines = [x for x in self.errors.read().decode(errors="replace").splitlines() if not x.startswith("USDT:")]
        text = " ".join(" ".join(lines[-6:]).split())
        return f": {text[-KEPT_OUTPUT:]}" if text else ""

    def _kill_group(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _finish(self) -> str:
        """Waits for the child, ends what it left behind, closes both files; what it said last on its streams."""
        if self.process.poll() is None:
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._kill_group()
                self.process.wait()
        self._kill_group()  # grandchildren in its group
        os.close(self.pipe)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        said = self._said()
        self.errors.close()
        return said


def _event(line: bytes) -> dict[str, Any] | None:
    """The event that a line holds, None where it holds none: a kernel may find the pipe and write to it."""
    try:
        event = json.loads(line)
    except ValueError:  # also bytes that are no UTF-8
        return None
    return event if isinstance(event, dict) and {"e", "cell"} <= event.keys() else None


def require_platform(platform: str = sys.platform) -> None:
    """Raises CannotDo where children cannot be supervised: on Windows the reading side works, measuring does not."""
    if platform == "win32":
        raise CannotDo(
            "measuring needs process groups and signals, which Windows has not; measure on Linux (WSL does) or "
            "macOS and read the run here: attnbench report PATH"
        )


def start(
    job: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    place: Place = HERE,
    module: str = "bench.worker",
    live: bool = False,
) -> Child:
    """Starts a worker on a job, in a session of its own, with results on a private pipe.

    A live one reads its job from the first line of its standard input and commands from those after it.
    """
    reading, writing = os.pipe()
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
    kills = out_of_memory_kills()
    try:
        process = subprocess.Popen(
            [place.python, *(["-P"] if place.root else []), "-m", module, str(writing)],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            pass_fds=(writing,),
            start_new_session=True,
            env={**os.environ, **place.environment(), **environment},
        )
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    child = Child(process, reading, errors, kills)
    child.say({**job, "parent": os.getpid()})
    if process.stdin is not None and not live:
        with contextlib.suppress(BrokenPipeError):  # it died before it read its job: its death is told by `events`
            process.stdin.close()
    return child


def out_of_memory_kills() -> int:
    """How often the kernel killed for memory, from /proc/vmstat and this cgroup's counter; 0 where neither is."""
    total = 0
    for path in (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")):
        if not path.exists():
            continue
        for line in path.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            total += int(value) if name == "oom_kill" else 0
    return total
