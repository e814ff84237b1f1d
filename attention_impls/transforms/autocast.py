"""`autocast:bf16`, `autocast:f16`: torch's autocast decides operator by operator what runs in half precision.

Which operators those are differs between devices and versions, so what was seen is recorded. Inputs and
output keep the workload's dtype.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from attention_impls.call import Call
from attention_impls.contract import DTYPES, POLICY, Applied, Evidence, Implementation, Output, Run, Transform
from attention_impls.evidence import Told, working

LABEL = "autocast"
TARGETS = ("bf16", "f16")


def _wrap(inner: Implementation, argument: str | None) -> Implementation:
    if argument not in TARGETS:
        raise ValueError(f"{LABEL} needs one of {', '.join(TARGETS)}, as in {LABEL}:bf16; got {argument or 'nothing'}")
    name, dtype = argument, DTYPES[argument]

    def prepare(call: Call, lse: bool) -> Run:
        device = call.q.device.type
        with torch.autocast(device, dtype=dtype):
            kernel = inner.prepare(call, lse)

        def run(call: Call) -> Output:
            with torch.autocast(device, dtype=dtype):
                out, total = kernel(call)
            return Output(out.to(call.q.dtype), None if total is None else total.float())

        return Told(run, (kernel,), {_ran_in(name): 1})

    def refusal(call: Call, direction: str) -> str | None:
        if call.q.dtype == torch.float64:
            return "autocast leaves float64 alone"
        if call.q.dtype == dtype:
            return f"{POLICY}the workload is {name} already, so {LABEL}:{name} would change nothing"
        if call.where in inner.backend and call.where == "cpu":
            return (
                f"{POLICY}{inner.backend['cpu']} is called by name, which autocast does not know: nothing would change"
            )
        return inner.refuses(call, direction)

    support = replace(inner.support, dtypes=inner.support.dtypes - {"f64", name})
    return replace(inner, prepare=prepare, refusal=refusal, support=support, prefill=None, configure=None)


def _applied(evidence: Evidence, bare: Evidence) -> Applied:
    """Proof: some operator gave a result in half precision; the text lists which ran in what."""
    asked = [name for name in TARGETS if evidence.facts.get(_ran_in(name))]
    computed = working(dict.fromkeys(evidence.dtypes, 1))
    seen = {name: sorted(op for op in computed if name in evidence.dtypes[op]) for name in (*TARGETS, "f32", "f64")}
    text = "; ".join(f"{name}: {', '.join(ops)}" for name, ops in seen.items() if ops)
    if not any(seen[name] for name in asked):
        return Applied(False, f"no operator ran in {' or '.join(asked) or 'half precision'}; {text}")
    return Applied(True, text)


def _ran_in(name: str) -> str:
    return f"{LABEL}.{name}"


TRANSFORM = Transform(
    label=LABEL,
    doc="torch's autocast decides which operators run in half precision",
    aims_at="numbers",
    wrap=_wrap,
    applied=_applied,
    example="bf16",
)
