"""Exact bytes of one step above its inputs, outputs included; of a training step also what outlives it."""

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


def _optimiser(part: Callable[[Held], int | None]) -> Callable[[Taken], Reading | None]:
    def read(taken: Taken) -> Reading | None:
        if not taken.kept:
            return None  # only training has an optimiser
        return _of(part, True)(taken)

    return read


def _kept(name: str) -> Callable[[Taken], Reading | None]:
    return lambda taken: Reading("B", (taken.kept[name],)) if name in taken.kept else None


METRICS = (
    Metric(
        "peak_forward", "B", "lower", "exact", "peak of the forward", "memory", _of(lambda h: h.peak_forward, False)
    ),
    Metric("held_for_backward", "B", "lower", "exact", "held for the backward", "memory", _of(lambda h: h.held, True)),
    Metric(
        "peak_backward", "B", "lower", "exact", "peak of the backward", "memory", _of(lambda h: h.peak_backward, True)
    ),
    Metric(
        "peak_optimiser",
        "B",
        "lower",
        "exact",
        "peak of the optimiser",
        "memory",
        _optimiser(lambda h: h.peak_optimise),
    ),
    Metric(
        "optimiser_scratch",
        "B",
        "lower",
        "exact",
        "scratch of the optimiser",
        "memory",
        _optimiser(lambda h: h.scratch),
    ),
    Metric("gradients", "B", "lower", "exact", "gradients of the weights", "memory", _kept("gradients")),
    Metric("optimiser_state", "B", "lower", "exact", "state of the optimiser", "memory", _kept("optimiser_state")),
)
