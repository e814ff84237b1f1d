"""A made-up run: numbers by formula, so that a test knows by hand what the report must say."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.record import SCHEMA, Key, MetricInfo, Reading, Record, RunHeader
from bench.store import Run

METRICS = {
    "latency": MetricInfo("s", "lower", "timed", "latency"),
    "prepare": MetricInfo("s", "lower", "timed", "prepare"),
    "peak_forward": MetricInfo("B", "lower", "exact", "peak memory, forward"),
    "peak_backward": MetricInfo("B", "lower", "exact", "peak memory, backward"),
    "error_out": MetricInfo("1", "lower", "budget", "relative error"),
    "error_out_worst_row": MetricInfo("1", "lower", "budget", "error of the worst row"),
    "error_out_floors": MetricInfo("1", "lower", "budget", "error in rounding floors"),
    "tokens_rate": MetricInfo("token/s", "higher", "shown", "tokens a second"),
}
# subject: (variant, seconds at n=1024 and power of n, bytes at n=1024 and power of n, error)
SUBJECTS = {
    "softmax.sdpa_flash": ("softmax", 2e-3, 2, 3 << 20, 1, 2.0e-7),
    "softmax.naive": ("softmax", 6e-3, 2, 66 << 20, 2, 1.0e-7),
    "softmax.tiled": ("softmax", 4e-3, 2, 5 << 20, 1, 3.0e-7),
    "softmax.naive+query_chunks:128": ("softmax", 7e-3, 2, 10 << 20, 1, 1.5e-7),
    "linear.chunked": ("linear", 1e-3, 1, 4 << 20, 1, 4.0e-7),
}
REFERENCE = "softmax.sdpa_flash"


def reading(unit: str, *values: float) -> Reading:
    return Reading(unit=unit, values=values)


def make_record(
    subject: str, n: int = 1024, direction: str = "fwd", heads: int = 8, dtype: str = "f32", **changes: Any
) -> Record:
    """One cell measured: latency is 15 rounds around the formula, everything else exactly the formula."""
    variant, seconds, power, peak, grows, error = SUBJECTS.get(subject, ("softmax", 5e-3, 2, 8 << 20, 1, 2e-7))
    work = (3.5 if direction == "fwdbwd" else 1.0) * heads / 8
    latency = seconds * (n / 1024) ** power * work
    bytes_ = int(peak * (n / 1024) ** grows * heads / 8)
    noise = random.Random(f"{subject}{n}{direction}{heads}{dtype}")
    worse = 1e4 if dtype == "bf16" else 1.0
    readings = {
        "latency": Reading("s", tuple(latency * noise.uniform(0.97, 1.05) for _ in range(15)), tuple(range(15))),
        "prepare": reading("s", 2e-5),
        "peak_forward": reading("B", bytes_),
        "error_out": reading("1", error * worse),
        "error_out_worst_row": reading("1", error * worse * 3),
        "error_out_floors": reading("1", error / 1.6e-7),
        "tokens_rate": reading("token/s", n / latency),
    }
    if direction == "fwdbwd":
        readings["peak_backward"] = reading("B", bytes_ * 3)
    group = f"b1-h{heads}-n{n}-d64-{dtype}-causal/{direction}/cpu1"
    cell = {
        "id": f"{subject}/{group}", "subject": subject, "variant": variant, "implementation": subject.split(".")[1],
        "transforms": "", "layer": None, "batch": 1, "heads": heads, "kv_heads": heads, "q_len": n, "kv_len": n,
        "head_dim": 64, "value_dim": 64, "dtype": dtype, "mask": "causal", "inputs": "normal", "dropout": 0.0,
        "direction": direction, "device": "cpu", "threads": 1, "group": group, "reference": REFERENCE,
    }  # fmt: skip
    parts: dict[str, Any] = {"outcome": "ok", "readings": readings, "backend": variant, "at": 1.76e9}
    return Record(key=Key(f"{subject}/{group}", "p1"), cell=cell, **(parts | changes))


def make_header(records: Sequence[Record], **changes: Any) -> RunHeader:
    parts: dict[str, Any] = {
        "schema": SCHEMA, "run": "20261129t101500z-0123abcd-made_up-7f3a", "created": "2026-11-29T10:15:00Z",
        "plan": {"suite": "made_up", "reference": [REFERENCE], "cells": [r.key.cell for r in records]},
        "protocol": {"clock": "perf_counter", "warm calls": 2, "rounds": 15}, "protocol_digest": "p1",
        "machine": {"id": "quartz-2c-8g-0001", "cpu": "Quartz 9000", "cores": 2, "memory": "8 GiB"},
        "environment": {"torch": "2.13.0", "python": "3.11.9", "load": 0.1}, "environment_digest": "e1",
        "commit": "0123abcd4567", "dirty": "", "metrics": METRICS,
        "texts": {
            "softmax": {
                "doc": "Softmax attention, the base of everything here.", "formula": "A = softmax(scale · q kᵀ)",
                "paper": "Vaswani et al. 2017, arXiv 1706.03762", "cost": "time O(n²), memory O(n²) materialised",
            },
            "linear": {"formula": "A = φ(q) φ(k)ᵀ", "paper": "Katharopoulos et al. 2020, arXiv 2006.16236",
                       "cost": "O(n)", "approximates": "nothing: a mechanism of its own"},
        },
        "left_out": ({"what": "mask=packed:8 direction=train", "why": "no layer was asked for"},),
        "command": ("attnbench", "run", "--suite", "made_up"),
    }  # fmt: skip
    return RunHeader(**(parts | changes))


def make_run(records: Sequence[Record], *, finished: bool = True, **changes: Any) -> Run:
    return Run(make_header(records, **changes), tuple(records), finished, Path("made_up.jsonl"))


def sweep(
    lengths: Sequence[int] = (128, 256, 512, 1024),
    directions: Sequence[str] = ("fwd", "fwdbwd"),
    dtypes: Sequence[str] = ("f32",),
    subjects: Sequence[str] = tuple(SUBJECTS),
) -> list[Record]:
    """Every subject at every length, in each direction and dtype; heads 4 and 16 too at n = 1024."""
    points = [(n, d, 8, t) for d in directions for t in dtypes for n in lengths]
    points += [(1024, d, h, t) for d in directions for t in dtypes for h in (4, 16) if 1024 in lengths]
    return [make_record(s, n, d, h, t) for n, d, h, t in points for s in subjects]


def failed(subject: str, outcome: str, note: str, n: int = 1024, **changes: Any) -> Record:
    return make_record(subject, n, outcome=outcome, note=note, readings={}, **changes)


@pytest.fixture(scope="session")
def record() -> Callable[..., Record]:
    return make_record


@pytest.fixture(scope="session")
def failure() -> Callable[..., Record]:
    return failed


@pytest.fixture(scope="session")
def a_run() -> Callable[..., Run]:
    return make_run


@pytest.fixture(scope="session")
def a_sweep() -> Callable[..., list[Record]]:
    return sweep
