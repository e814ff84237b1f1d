"""Opt-in: decoding from a cache, for implementations that have one: digesting the tokens before the last, and one step.

Only forwards of causal workloads have a last token to decode; the step is held against the whole run first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attention_impls import catalogue, inputs, judge
from bench.cell import Cell
from bench.devices import all_devices
from bench.metric import Asked, Found, Metric, missing
from bench.record import Reading

BLOCKS = 15
BLOCK_S = 1e-3
SAME = 1e-2  # relative, in any dtype: a step that reads another cache is off by about 1


def _prefill(asked: Asked) -> Found:
    return Found(_timed(asked.cell, lambda bare, last: lambda: bare.prefill(last)))


def _step(asked: Asked) -> Found:
    def steps(bare: Any, last: Any) -> Callable[[], Any]:
        cache = bare.prefill(last)
        return lambda: bare.resume(last, cache)

    return Found(_timed(asked.cell, steps))


def _timed(cell: Cell, work_of: Callable[[Any, Any], Callable[[], Any]]) -> Reading:
    subject = catalogue.find(cell.subject)
    bare = subject.inner
    if subject.layer is not None or bare.prefill is None or bare.resume is None:
        return missing("s", "has no cache to decode from")
    if cell.direction != "fwd" or "causal" not in cell.workload.mask:
        return missing("s", "decoding is the forward of a causal workload")
    device = all_devices()[cell.device]
    call = inputs.draw(subject.variant, cell.workload, device=cell.device, layout=bare.layout)
    last = call.rows(cell.workload.q_len - 1, cell.workload.q_len)
    with torch.no_grad():
        whole = bare.prepare(call, False)(call).out[:, :, -1:]
        off = judge.errors(bare.resume(last, bare.prefill(last)).out, whole.double()).relative
        if not off <= SAME:
            return missing(
                "s", f"the decoded token is off by {off:.3g} from the whole run's: no speed for a wrong answer"
            )
        work, inner = work_of(bare, last), 1
        while device.block(work, inner) < BLOCK_S:
            inner *= 2
        values = tuple(device.block(work, inner) / inner for _ in range(BLOCKS))
    return Reading("s", values, round=tuple(range(BLOCKS)), inner=(inner,) * BLOCKS)


METRICS = (
    Metric(
        "prefill", "s", "lower", "shown", "digesting the tokens before the last", "own", ask=_prefill, optional=True
    ),
    Metric("decode_step", "s", "lower", "shown", "one token from the cache", "own", ask=_step, optional=True),
)
