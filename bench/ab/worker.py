"""A live child: prepares its cells once, then times one block of one of them whenever it is told to.

    python -m bench.ab.worker <fd of the event pipe>     first line of standard input: the job; then commands

Commands are lines of JSON: {"do": "prepare", "cells": [index]}, {"do": "tune", "inner": {index: [calls, warm]}},
{"do": "block", "cell": index, "round": number}, {"do": "check"}. Each is answered by events and then `done`.
It says first which files it imported: that the right kernels were measured is proved, not assumed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.worker import Emitter, limit_memory, protect


def serve(job: Mapping[str, Any], commands: Iterable[str], emit: Emitter) -> None:
    """Obeys until the commands end."""
    import attention_impls
    from attention_impls import catalogue
    from attention_impls.contract import CONTRACT_VERSION
    from bench.cell import from_data
    from bench.devices import all_devices
    from bench.garbage import uncollected
    from bench.protocol import Protocol

    for path in job["plugins"]:
        catalogue.load_plugin(Path(path))
    protocol = Protocol(**job["protocol"])
    cells = {int(index): from_data(data) for index, data in job["cells"]}
    first = next(iter(cells.values()))
    device = all_devices()[first.device]
    facts = device.set_up(first.threads, protocol.clock, tf32=first.workload.dtype == "tf32")
    if device.name == "cpu":
        limit_memory(protocol.memory_limit)
    kernels, driver = (
        str(Path(str(module.__file__)).resolve().parent) for module in (attention_impls, sys.modules["bench"])
    )
    emit("ready", None, facts=facts, kernels=kernels, driver=driver, contract=CONTRACT_VERSION)
    side = _Side(device, protocol, cells, emit)
    with uncollected():
        for line in commands:
            command = json.loads(line)
            side.does[command["do"]](command)
            emit("done", None)
    emit("end", None)


class _Side:
    """The contenders of one worker, by the index of their cell."""

    def __init__(self, device: Any, protocol: Any, cells: Mapping[int, Any], emit: Emitter) -> None:
        self.device, self.protocol, self.cells, self.emit = device, protocol, cells, emit
        self.contenders: dict[int, Any] = {}
        self.does: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "prepare": self.prepare,
            "tune": self.tune,
            "block": self.block,
            "check": self.check,
        }

    def prepare(self, command: Mapping[str, Any]) -> None:
        """Prepares and warms cells; those that raise are reported and left out."""
        from bench.measure import contend, guarded
        from bench.timing import warm_up

        for index in command["cells"]:
            self.emit("start", index, phase="prepare")
            cell = self.cells[index]
            made = guarded(
                self.device, index, self.emit, partial(contend, self.device, cell, index, self.protocol, self.emit)
            )
            if made is None:
                continue
            warm = partial(warm_up, self.device, made, self.protocol, time.monotonic)
            with made.step.mode():
                if guarded(self.device, index, self.emit, warm) is None:
                    continue
            self.contenders[index] = made
            self.emit("warmed", index, inner=made.inner, warm=made.warm)

    def tune(self, command: Mapping[str, Any]) -> None:
        """Takes the calls a block, and those before it, that both sides use."""
        for index, (inner, warm) in command["inner"].items():
            if int(index) in self.contenders:
                contender = self.contenders[int(index)]
                contender.inner, contender.warm = int(inner), int(warm)

    def block(self, command: Mapping[str, Any]) -> None:
        """Times one block."""
        from bench.measure import guarded
        from bench.timing import take_block

        index = command["cell"]
        contender = self.contenders[index]
        self.emit("start", index, phase="time")
        with contender.step.mode():
            sample = guarded(
                self.device, index, self.emit, partial(take_block, self.device, contender, command["round"])
            )
        if sample is not None:
            self.emit("sample", index, v=[sample.seconds, sample.inner, sample.round, sample.faults, sample.at])

    def check(self, command: Mapping[str, Any]) -> None:
        """Asks each cell for an answer once more: a step that has been timed must still compute."""
        from bench.measure import guarded
        from bench.right import check_again

        for index, contender in self.contenders.items():
            self.emit("start", index, phase="check")
            note = guarded(self.device, index, self.emit, partial(check_again, contender.step))
            if note:
                self.emit("failed", index, outcome="wrong", note=f"after timing: {note}")


def main() -> None:
    """Reads the job's line, protects the machine, obeys."""
    job = json.loads(sys.stdin.readline())
    protect(job["parent"])
    serve(job, sys.stdin, Emitter(int(sys.argv[1])))


if __name__ == "__main__":
    main()
