"""Why a mechanism has no meaning for a call: the reasons that several of them share, for `Variant.why_not`."""

from __future__ import annotations

from collections.abc import Callable

from attention_impls.call import Call

Reason = Callable[[Call], str | None]


def either(*reasons: Reason) -> Reason:
    """The first reason there is."""
    return lambda call: next((text for reason in reasons if (text := reason(call))), None)


def one(head_dim: int) -> float:
    """The scale of a mechanism that has none."""
    return 1.0


def no_scale(name: str) -> Reason:
    """The mechanism `name` has no logits to scale, or its output does not feel their scale."""
    return lambda call: None if call.scale == 1.0 else f"{name} has no scale; got {call.scale:.4g}, it must be 1"


def one_size(name: str) -> Reason:
    """The mechanism `name` multiplies queries or keys with values element by element."""

    def reason(call: Call) -> str | None:
        d, e = call.q.shape[3], call.v.shape[3]
        if d == e:
            return None
        return f"{name} multiplies elements of queries and keys with those of values: sizes {d} and {e} must be equal"

    return reason
