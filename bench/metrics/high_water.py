"""Opt-in: how far one step raises the process's resident high-water mark, in a child with malloc settings of its own.

Under glibc's own thresholds the mark measures what earlier steps left behind; with every larger block mapped
and given back at once it is the step's, within about 0.1 MiB. It slows the step, so it is never timed.
"""

from __future__ import annotations

from pathlib import Path

from attention_impls import catalogue
from bench.metric import Asked, Found, Metric, missing
from bench.record import Reading
from bench.step import draw, prepare

MAPPED_HEAP = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
_CLEAR_PEAK = "5"  # written to clear_refs, resets VmHWM (proc(5))


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _high_water(asked: Asked) -> Found:
    cell = asked.cell
    clear = Path("/proc/self/clear_refs")
    if not clear.exists():
        return Found(missing("B", "needs Linux's /proc/self/clear_refs"))
    subject = catalogue.find(cell.subject)
    drawn = draw(subject, cell, 1)
    step = prepare(subject, cell, drawn)
    with step.mode():
        step.once(0)()  # libraries allocate lazily on the first call
        before = _status("VmRSS:")
        clear.write_text(_CLEAR_PEAK, encoding="ascii")
        step.once(0)()
    return Found(Reading("B", (max(0, _status("VmHWM:") - before),)))


METRICS = (
    Metric(
        "high_water", "B", "lower", "shown", "rise of the resident high-water mark", "own", ask=_high_water,
        optional=True, environment=MAPPED_HEAP,
    ),
)  # fmt: skip
