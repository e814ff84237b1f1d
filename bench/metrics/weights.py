"""Bytes of what a layer keeps between calls: weights, biases, buffers, and the scales of weights in fewer bits."""

from __future__ import annotations

from attention_impls.layer_subject import WEIGHT_BYTES
from bench.metric import Metric, Taken
from bench.record import Reading


def _weights(taken: Taken) -> Reading | None:
    """Nothing for a bare kernel, which keeps none."""
    kept = taken.evidence.facts.get(WEIGHT_BYTES)
    return None if kept is None else Reading("B", (kept,))


METRICS = (Metric("weight_bytes", "B", "lower", "exact", "bytes of a layer's weights", "memory", _weights),)
