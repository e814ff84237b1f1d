"""Opt-in: the first call of a cell in a process of its own, with compile caches cold or warm.

torch's precompiled C++ header lies outside the cache folder and stays warm in both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from attention_impls import catalogue
from bench.cell import Cell
from bench.devices import all_devices
from bench.metric import Asked, Found, Metric
from bench.record import Reading
from bench.step import draw, prepare

_AGAIN = """
import json, sys
from bench.cell import parse_id
from bench.metrics.first_call import first_call
print(json.dumps(first_call(parse_id(sys.argv[1]))))
"""


def first_call(cell: Cell) -> float:
    """Seconds from a subject that has never run here to its first answer: prepare and one step."""
    subject = catalogue.find(cell.subject)
    drawn = draw(subject, cell, 1)

    def first() -> None:
        step = prepare(subject, cell, drawn)
        with step.mode():
            step.once(0)()

    return all_devices()[cell.device].block(first, 1)


def _cold(asked: Asked) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        return Found(Reading("s", (first_call(asked.cell),)))


def _warm(asked: Asked) -> Found:
    """The first call of a second process that finds what another compiled."""
    with tempfile.TemporaryDirectory() as folder:
        around = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        words = [sys.executable, "-c", _AGAIN, asked.cell.id]
        subprocess.run(words, env=around, check=True, capture_output=True)
        done = subprocess.run(words, env=around, check=True, capture_output=True, text=True)
        return Found(Reading("s", (float(done.stdout.split()[-1]),)))


METRICS = (
    Metric("first_call_cold", "s", "lower", "shown", "first call, compile cache cold", "own", ask=_cold, optional=True),
    Metric("first_call_warm", "s", "lower", "shown", "first call, compile cache warm", "own", ask=_warm, optional=True),
)
