"""Operators dispatched in one step, counted exactly, and the arithmetic the model asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from attention_impls import catalogue
from attention_impls.contract import Workload
from attention_impls.inputs import build_mask
from bench.metric import Metric, Taken
from bench.record import Reading, Scalar

BACKWARD_SHARE = 2.5  # five products against the forward's two; recomputation is not counted


def _dispatched(taken: Taken) -> Reading:
    return Reading("op", (sum(taken.evidence.forward.values()) + sum(taken.evidence.backward.values()),))


def _model_flops(cell: Mapping[str, Scalar], readings: Mapping[str, Reading]) -> Reading:
    """2 · visible pairs · (D + E) for the forward, 2.5 times more for a backward; a pattern hides as a mask does."""
    names = Workload.__dataclass_fields__
    workload = Workload(**{name: cell[name] for name in names})  # type: ignore[arg-type]
    pattern = catalogue.find(str(cell["subject"])).variant.pattern
    mask = replace(build_mask(workload), pattern=pattern)
    pairs = mask.pairs(workload.batch, workload.heads)
    forward = 2 * pairs * (workload.head_dim + workload.value_dim)
    share = 1.0 if cell["direction"] == "fwd" else 1.0 + BACKWARD_SHARE
    return Reading("flop", (int(forward * share),))


METRICS = (
    Metric("dispatched_ops", "op", "lower", "exact", "operators dispatched", "memory", _dispatched),
    Metric("model_flops", "flop", "none", "shown", "arithmetic of the visible pairs", "derive", derive=_model_flops),
)
