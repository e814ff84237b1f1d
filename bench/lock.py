"""One measuring run at a time per device on a machine: two at once spoil each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import CannotDo


def lock_folder() -> Path:
    """`$XDG_CACHE_HOME/attnbench`, or `~/.cache/attnbench`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "attnbench"


@contextmanager
def device_lock(
    device: str, *, wait: bool = False, told: Callable[[str], None] = lambda _: None, option: str = "--wait"
) -> Iterator[None]:
    """Holds the machine's lock of a device. Raises CannotDo naming the holder's pid, or waits with `wait`.

    `told(sentence)` is called once before waiting; `option` is what the message says to type for it.
    """
    import fcntl

    lock_folder().mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock_folder() / f"{device}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
            text = f"another run is measuring on {device} (pid {holder}); two at once spoil each other"
            if not wait:
                raise CannotDo(f"{text}; use {option}") from None
            told(text + "; waiting")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
