"""Writes the two stored runs of a made-up machine that tests of the reading side begin from.

    python bench/tests/data/make_runs.py

Numbers are formulas with a seeded spread, so that a test knows by hand what must be said of them. Between the
two runs: `softmax.naive` at n = 256 takes 1.6 times as long and 8 bytes more; `softmax.tiled` at n = 256 crashes;
`linear.chunked` at n = 128 is right again; the error of `softmax.tiled` at n = 128 doubles within its budget;
`softmax.rabe` at n = 128 is gone and `softmax.online` new there. The whole machine is 1.3 times slower.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.record import SCHEMA, Key, Line, MetricInfo, Reading, Record, RunEnd, RunHeader, to_json

MACHINE = "quartz-2c-8g-0001"
REFERENCE = "softmax.sdpa_math"
PROTOCOL = "0a1b2c3d4e5f"
BEFORE = "20260301t020000z-aaaa1111-tiny-0001"
AFTER = "20260302t020000z-bbbb2222-tiny-0002"
METRICS = {
    "latency": MetricInfo("s", "lower", "timed", "latency"),
    "peak_forward": MetricInfo("B", "lower", "exact", "peak of the forward"),
    "error_out_worst_row": MetricInfo("1", "lower", "budget", "error of the output, worst row"),
    "minor_faults": MetricInfo("fault", "lower", "shown", "minor page faults a step"),
}
SECONDS = {REFERENCE: 1e-3, "softmax.naive": 2e-3, "softmax.tiled": 3e-3, "linear.chunked": 5e-4}
BYTES = {REFERENCE: 2_721_792, "softmax.naive": 67_108_876, "softmax.tiled": 10_485_760, "linear.chunked": 4_194_304}
HOUR = {"before": 1.0, "after": 1.3}


def record(
    subject: str,
    n: int,
    *,
    seconds: float | None = None,
    peak: int | None = None,
    error: float = 1e-7,
    budget: float | None = 4e-7,
    rounds: int = 15,
    spread: float = 0.02,
    hour: float = 1.0,
    **changes: Any,
) -> Record:
    """One measured cell. Rounds of one length share their disturbance, as interleaved rounds do."""
    shared, own = random.Random(f"{n}{hour}"), random.Random(f"{subject}{n}{hour}")
    base = (SECONDS.get(subject, 1e-3) if seconds is None else seconds) * (n / 128) ** 2 * hour
    times = tuple(base * shared.uniform(1, 1.3) * own.uniform(1 - spread, 1 + spread) for _ in range(rounds))
    group = f"b1-h4-n{n}-d64-f32-causal/fwd/cpu1"
    readings = {
        "latency": Reading(
            "s", times, tuple(range(rounds)), (0,) * rounds, (4,) * rounds, tuple(1.77e9 + i for i in range(rounds))
        ),
        "peak_forward": Reading("B", ((BYTES.get(subject, 2**20) if peak is None else peak) * n // 128,)),
        "error_out_worst_row": Reading("1", (error,)),
        "minor_faults": Reading("fault", (0,)),
    }
    parts: dict[str, Any] = {
        "key": Key(f"{subject}/{group}", PROTOCOL),
        "cell": {
            "id": f"{subject}/{group}", "subject": subject, "variant": subject.partition(".")[0],
            "q_len": n, "kv_len": n, "heads": 4,
            "direction": "fwd", "device": "cpu", "threads": 1, "group": group, "reference": REFERENCE,
        },
        "outcome": "ok",
        "readings": readings,
        "facts": {} if budget is None else {"budget.error_out_worst_row": budget},
        "at": 1.77e9,
    }  # fmt: skip
    return Record(**(parts | changes))


def header(
    records: Sequence[Record], run: str = BEFORE, created: str = "2026-03-01T02:00:00Z", **changes: Any
) -> RunHeader:
    """A header that plans exactly these records."""
    parts: dict[str, Any] = {
        "schema": SCHEMA,
        "run": run,
        "created": created,
        "plan": {"suite": "tiny", "reference": [REFERENCE], "cells": [r.key.cell for r in records]},
        "protocol": {"version": 1, "heap": "pinned", "caches": "warm", "group_budget_s": 20.0},
        "protocol_digest": PROTOCOL,
        "machine": {"id": MACHINE, "cores": 2, "memory": 8 * 2**30},
        "environment": {"torch": "2.13.0+cpu", "python": "3.11.9"},
        "environment_digest": "e1",
        "commit": "aaaa1111",
        "dirty": "",
        "metrics": METRICS,
    }
    return RunHeader(**(parts | changes))


def before() -> list[Line]:
    """The lines of the earlier run."""
    records = [record(subject, n) for n in (128, 256) for subject in SECONDS]
    records[3] = record("linear.chunked", 128, outcome="wrong", note="off by 0.4 in its worst row", readings={})
    records.insert(4, record("softmax.rabe", 128))
    return [header(records), *records, RunEnd(1.77e9, len(records))]


def after() -> list[Line]:
    """The lines of the later run."""
    records = [record(subject, n, hour=HOUR["after"]) for n in (128, 256) for subject in SECONDS]
    records[2] = record("softmax.tiled", 128, error=2e-7, hour=HOUR["after"])
    records[5] = record("softmax.naive", 256, seconds=3.2e-3, peak=67_108_880, hour=HOUR["after"])
    records[6] = record("softmax.tiled", 256, outcome="crashed", note="signal 11 in the forward", readings={})
    records.insert(4, record("softmax.online", 128, hour=HOUR["after"]))
    return [header(records, AFTER, "2026-03-02T02:00:00Z", commit="bbbb2222"), *records, RunEnd(1.77e9, len(records))]


def write(path: Path, lines: Sequence[Line]) -> Path:
    """Lines as a run file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(to_json(line), allow_nan=False, separators=(",", ":")) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    folder = Path(__file__).parent
    write(folder / MACHINE / f"{BEFORE}.jsonl", before())
    write(folder / MACHINE / f"{AFTER}.jsonl", after())
