"""Exact bytes of one step above its inputs, outputs included."""

from __future__ import annotations

from collections.abc import Callable

from bench.device import Held
from bench.metric import Metric, Taken, missing
from bench.record import Reading


def _of(part: Callable[[Held], int | None], backward: bool) -> Callable[[Taken], Reading | None]:
    def read(taken: Taken) -> Reading | None:
        if backward and not taken.differentiates:
            return None  # a forward alone keeps nothing for a backward
        value = part(taken.held)
        return missing("B", taken.held.why_missing) if value is None else Reading("B", (value,))

    return read


METRICS = (
    Metric(
        "peak_forward", "B", "lower", "exact", "peak of the forward", "memory", _of(lambda h: h.peak_forward, False)
    ),
    Metric("held_for_backward", "B", "lower", "exact", "held for the backward", "memory", _of(lambda h: h.held, True)),
    Metric(
        "peak_backward", "B", "lower", "exact", "peak of the backward", "memory", _of(lambda h: h.peak_backward, True)
    ),
)
