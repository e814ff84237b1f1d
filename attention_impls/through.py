"""Implementations that turn their call into one of plain softmax, so that every softmax kernel serves them.

Used where a mechanism is softmax attention of other q, k, v: halves of heads, mixed heads, projected keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Implementation, Output, Run, Support, Variant
from attention_impls.mask import Mask

Turn = Callable[[Call], Call]
"""A call of the mechanism -> one of softmax, its mask left alone. Asked of meta tensors too."""

Back = Callable[[Tensor, Call], Tensor]
"""(softmax's output, the mechanism's call) -> the mechanism's output."""


def through(
    inner: Implementation,
    variant: Variant,
    turn: Turn,
    back: Back,
    *,
    mask: Callable[[Mask], Mask] = lambda mask: mask,
    why_not: Callable[[Call], str | None] | None = None,
) -> Implementation:
    """`inner`, an implementation of softmax, as one of `variant`, under the same name.

    mask: what the mask becomes, once, in prepare. why_not: a reason of the mechanism's own against it;
    every other refusal is the inner one's answer about the turned call. It returns no LSE.
    """

    def turned(call: Call) -> Call:
        return replace(turn(call), mask=mask(call.mask))

    def prepare(call: Call, lse: bool) -> Run:
        run = inner.prepare(turned(call), False)
        return lambda call: Output(back(run(turn(call)).out, call))

    def refusal(call: Call, direction: str) -> str | None:
        own = why_not(call) if why_not else None
        return own or inner.refuses(turned(call), direction)

    support: Support = replace(inner.support, lse="no")
    return replace(inner, variant=variant, prepare=prepare, refusal=refusal, support=support, configure=None)


def softmax_kernel(name: str) -> Implementation:
    """The implementation of softmax called `name`. Raises LookupError for any other name."""
    from attention_impls.variants.scores.softmax import IMPLEMENTATIONS

    found = next((i for i in IMPLEMENTATIONS if i.name == name), None)
    if found is None:
        raise LookupError(f"no softmax kernel called {name!r}; known: {', '.join(i.name for i in IMPLEMENTATIONS)}")
    return found
