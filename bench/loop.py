"""A child that runs one cell's step over and over, for a profiler to look at.

    python -m bench.loop <cell id> <seconds> [plugin.py …]

Input sets alternate as they do when the cell is timed. Nothing is measured here.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

from attention_impls import catalogue
from bench.cell import parse_id
from bench.devices import all_devices
from bench.protocol import Protocol
from bench.step import make


def loop(cell_id: str, seconds: float) -> int:
    """Runs steps for `seconds` after they are prepared; returns how many."""
    cell = parse_id(cell_id)
    device, protocol = all_devices()[cell.device], Protocol()
    device.set_up(cell.threads, "")
    step = make(catalogue.find(cell.subject), cell, protocol.input_sets)
    functions = [step.once(which) for which in range(protocol.input_sets)]
    until, done = time.monotonic() + seconds, 0
    with step.mode():
        for function in itertools.cycle(functions):
            function()
            done += 1
            if time.monotonic() >= until:
                device.synchronise()
                return done
    return done


def main() -> None:
    """Loads plugins, then loops."""
    for path in sys.argv[3:]:
        catalogue.load_plugin(Path(path))
    loop(sys.argv[1], float(sys.argv[2]))


if __name__ == "__main__":
    main()
