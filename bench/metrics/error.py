"""How far output, gradients and log-sum-exp are from the float64 oracle, on the sampled rows."""

from __future__ import annotations

from collections.abc import Callable

from attention_impls.judge import Errors
from bench.metric import Metric
from bench.record import Reading
from bench.right import Judged


def _of(name: str, part: Callable[[Errors], float]) -> Callable[[Judged], Reading | None]:
    def read(judged: Judged) -> Reading | None:
        found = judged.errors.get(name)
        return None if found is None else Reading("1", (part(found),))

    return read


def _error(metric: str, name: str, label: str, part: Callable[[Errors], float]) -> Metric:
    return Metric(metric, "1", "lower", "shown", label, "right", read=_of(name, part))


def _budgeted(metric: str, name: str, label: str, part: Callable[[Errors], float] = lambda e: e.worst_row) -> Metric:
    budget: Callable[[Judged], float | None] = lambda judged: judged.budgets.get(name)  # noqa: E731
    return Metric(metric, "1", "lower", "budget", label, "right", read=_of(name, part), budget=budget)


def _worst_parameter(judged: Judged) -> str | None:
    """The learned parameter whose gradient is nearest to its budget, or furthest over it."""
    own = [name for name in judged.errors if name not in ("out", "lse", "dq", "dk", "dv")]
    return max(own, key=lambda name: judged.errors[name].worst_row / judged.budgets[name], default=None)


def _gradients(judged: Judged) -> Reading | None:
    worst = _worst_parameter(judged)
    return None if worst is None else Reading("1", (judged.errors[worst].worst_row,))


def _gradients_budget(judged: Judged) -> float | None:
    worst = _worst_parameter(judged)
    return None if worst is None else judged.budgets[worst]


def _distance(judged: Judged) -> Reading | None:
    """None where it approximates nothing and rounds nothing on purpose: it is held to its own definition."""
    return None if judged.distance is None else Reading("1", (judged.distance,))


METRICS = (
    _error("error_out", "out", "error of the output, relative L2", lambda e: e.relative),
    _budgeted("error_out_worst_row", "out", "error of the output, worst row"),
    _error("error_out_max_abs", "out", "error of the output, largest", lambda e: e.max_abs),
    _error("error_out_floors", "out", "error of the output, in rounding floors", lambda e: e.floors),
    Metric(
        "nonfinite",
        "1",
        "lower",
        "exact",
        "entries of the output that are not finite",
        "right",
        read=_of("out", lambda e: float(e.nonfinite)),
    ),
    _budgeted("error_dq", "dq", "error of dq, worst row"),
    _budgeted("error_dk", "dk", "error of dk, worst row"),
    _budgeted("error_dv", "dv", "error of dv, worst row"),
    Metric(
        "error_dparameters",
        "1",
        "lower",
        "budget",
        "error of the parameters' gradients, worst row",
        "right",
        read=_gradients,
        budget=_gradients_budget,
    ),
    _budgeted("error_lse", "lse", "error of the log-sum-exp, largest", lambda e: e.max_abs),
    Metric("distance_softmax", "1", "none", "shown", "distance from what it approximates", "right", _distance),
)
