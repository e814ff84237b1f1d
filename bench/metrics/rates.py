"""What latency means as rates: arithmetic, bytes of inputs and outputs, tokens."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from attention_impls.contract import DTYPES
from bench.metric import Metric
from bench.record import Reading, Scalar


def _seconds(readings: Mapping[str, Reading]) -> float | None:
    taken = readings.get("latency")
    return median(taken.values) if taken and taken.values else None


def _rate(amount: float, unit: str, readings: Mapping[str, Reading]) -> Reading | None:
    seconds = _seconds(readings)
    return None if not seconds else Reading(unit, (amount / seconds,))


def _flops(cell: Mapping[str, Scalar], readings: Mapping[str, Reading]) -> Reading | None:
    asked = readings.get("model_flops")
    return _rate(asked.values[0], "flop/s", readings) if asked and asked.values else None


def _bytes(cell: Mapping[str, Scalar], readings: Mapping[str, Reading]) -> Reading | None:
    """q, k, v read and the output written once; with a backward their gradients and the upstream one too."""
    n = {name: int(cell[name] or 0) for name in _SIZES}
    queries = n["batch"] * n["heads"] * n["q_len"]
    keys = n["batch"] * n["kv_heads"] * n["kv_len"]
    elements = queries * (n["head_dim"] + n["value_dim"]) + keys * (n["head_dim"] + n["value_dim"])
    passes = 1 if cell["direction"] == "fwd" else 2
    return _rate(elements * passes * DTYPES[str(cell["dtype"])].itemsize, "B/s", readings)


def _tokens(cell: Mapping[str, Scalar], readings: Mapping[str, Reading]) -> Reading | None:
    return _rate(int(cell["batch"] or 0) * int(cell["q_len"] or 0), "token/s", readings)


_SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim")

METRICS = (
    Metric("flops_rate", "flop/s", "higher", "shown", "arithmetic rate", "derive", derive=_flops),
    Metric("bandwidth", "B/s", "higher", "shown", "inputs and outputs over time", "derive", derive=_bytes),
    Metric("tokens_rate", "token/s", "higher", "shown", "tokens over time", "derive", derive=_tokens),
)
