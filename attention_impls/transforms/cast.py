"""`cast:bf16`, `cast:f16`, `cast:f32`: compute in another dtype, inputs and output keeping the workload's.

q, k, v and those parameters that follow the workload's dtype are rounded on the way in, the output is
converted on the way out; decays, indices and whatever else states a dtype of its own is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import (
    DTYPES,
    POLICY,
    Applied,
    Evidence,
    Implementation,
    Output,
    Run,
    Transform,
    Variant,
    dtype_name,
)
from attention_impls.evidence import Told, working
from attention_impls.oracle import rows_of

LABEL = "cast"
TARGETS = ("bf16", "f16", "f32")


def _wrap(inner: Implementation, argument: str | None) -> Implementation:
    name = _target(argument)
    dtype = DTYPES[name]

    def inside(call: Call) -> Call:
        return _changed(call, inner.variant, lambda t: t.to(dtype))

    def prepare(call: Call, lse: bool) -> Run:
        kernel = inner.prepare(inside(call), lse)

        def run(call: Call) -> Output:
            out, total = kernel(inside(call))
            wide = None if total is None else total.to(torch.promote_types(total.dtype, call.q.dtype))
            return Output(out.to(call.q.dtype), wide)

        return Told(run, (kernel,), {_ran_in(name): 1})

    def refusal(call: Call, direction: str) -> str | None:
        if call.q.dtype == dtype:
            return f"{POLICY}the workload is {name} already, so {LABEL}:{name} would change nothing"
        return inner.refuses(inside(call), direction)

    others = frozenset(word for word, known in DTYPES.items() if known != dtype)
    takes = others if name in inner.support.dtypes else frozenset[str]()
    support = replace(inner.support, dtypes=takes)
    return replace(inner, prepare=prepare, refusal=refusal, support=support, prefill=None, configure=None)


def _definition(variant: Variant, argument: str | None) -> Variant:
    """The mechanism on inputs rounded to the narrower dtype, its output rounded too; the rest in the call's dtype.

    Roundings between the two depend on the kernel: the precision budget of that dtype allows for them.
    """
    dtype = DTYPES[_target(argument)]

    def through(t: Tensor) -> Tensor:
        return t.to(dtype).to(t.dtype)

    def rounded(call: Call) -> Call:
        return _changed(call, variant, through)

    def output(call: Call, rows: Tensor) -> Tensor:
        return through(rows_of(variant, rounded(call), rows)[0])

    def lse(call: Call, rows: Tensor) -> Tensor:
        total = rows_of(variant, rounded(call), rows)[1]
        if total is None:
            raise ValueError(f"{variant.name} has no log-sum-exp")
        return total

    return replace(
        variant, weights=None, output=output, finish=None, oracle=None, lse=lse if variant.lse is not None else None
    )


def _changed(call: Call, variant: Variant, change: Callable[[Tensor], Tensor]) -> Call:
    """The call with `change` applied to q, k, v and the floating parameters that follow the workload's dtype."""

    def follows(name: str, value: Tensor) -> bool:
        return value.is_floating_point() and variant.parameters[name].dtype == "workload"

    parameters = {name: change(p) if follows(name, p) else p for name, p in call.parameters.items()}
    return replace(call, q=change(call.q), k=change(call.k), v=change(call.v), parameters=parameters)


def _target(argument: str | None) -> str:
    if argument not in TARGETS:
        raise ValueError(f"{LABEL} needs one of {', '.join(TARGETS)}, as in {LABEL}:bf16; got {argument or 'nothing'}")
    return argument


def _applied(evidence: Evidence, bare: Evidence) -> Applied:
    """Proof: results in a dtype in which the bare kernel gave none; the text says which operators computed in it.

    A kernel may widen its inputs again: then they were rounded, and nothing was computed in the narrow dtype.
    """
    targets = {name for name in TARGETS if evidence.facts.get(_ran_in(name))}
    new = {op: (seen - bare.dtypes.get(op, frozenset())) & targets for op, seen in evidence.dtypes.items()}
    if not any(new.values()):
        return Applied(False, f"nothing was ever in {' or '.join(sorted(targets)) or 'another dtype'}")
    computed = [f"{op} in {', '.join(sorted(new[op]))}" for op in sorted(working(dict.fromkeys(new, 1))) if new[op]]
    return Applied(True, "; ".join(computed[:4]) or "inputs were rounded, the kernel computes in its own dtype inside")


def _ran_in(name: str) -> str:
    return f"{LABEL}.{dtype_name(DTYPES[name])}"


TRANSFORM = Transform(
    label=LABEL,
    doc="computes in another dtype; inputs and output keep the workload's",
    aims_at="numbers",
    wrap=_wrap,
    definition=_definition,
    applied=_applied,
    example="bf16",
)
