"""How far output, gradients and log-sum-exp are from the float64 oracle, on the sampled rows."""

from __future__ import annotations

from collections.abc import Callable

from attention_impls.judge import Errors
from bench.metric import Metric, missing
from bench.record import Reading
from bench.right import Judged


def _of(name: str, part: Callable[[Errors], float]) -> Callable[[Judged], Reading]:
    def read(judged: Judged) -> Reading:
        found = judged.errors.get(name)
        if found is None:
            return missing("1", f"no {name} in this direction, or none to be had")
        return Reading("1", (part(found),))

    return read


def _error(metric: str, name: str, label: str, part: Callable[[Errors], float], noise: str = "shown") -> Metric:
    return Metric(metric, "1", "lower", noise, label, "right", read=_of(name, part))


def _gradients(judged: Judged) -> Reading:
    """The worst row of any learned parameter's gradient, where the mechanism has parameters."""
    own = [e.worst_row for name, e in judged.errors.items() if name not in ("out", "lse", "dq", "dk", "dv")]
    return Reading("1", (max(own),)) if own else missing("1", "no learned parameters, or no backward")


def _distance(judged: Judged) -> Reading:
    if judged.distance is None:
        return missing("1", "it approximates nothing: it is held to its own definition")
    return Reading("1", (judged.distance,))


METRICS = (
    _error("error_out", "out", "error of the output, relative L2", lambda e: e.relative),
    _error("error_out_worst_row", "out", "error of the output, worst row", lambda e: e.worst_row, "budget"),
    _error("error_out_max_abs", "out", "error of the output, largest", lambda e: e.max_abs),
    _error("error_out_floors", "out", "error of the output, in rounding floors", lambda e: e.floors),
    _error("nonfinite", "out", "entries of the output that are not finite", lambda e: float(e.nonfinite), "exact"),
    _error("error_dq", "dq", "error of dq, worst row", lambda e: e.worst_row, "budget"),
    _error("error_dk", "dk", "error of dk, worst row", lambda e: e.worst_row, "budget"),
    _error("error_dv", "dv", "error of dv, worst row", lambda e: e.worst_row, "budget"),
    Metric(
        "error_dparameters",
        "1",
        "lower",
        "budget",
        "error of the parameters' gradients, worst row",
        "right",
        _gradients,
    ),
    _error("error_lse", "lse", "error of the log-sum-exp, largest", lambda e: e.max_abs, "budget"),
    Metric("distance_softmax", "1", "none", "shown", "distance from what it approximates", "right", _distance),
)
