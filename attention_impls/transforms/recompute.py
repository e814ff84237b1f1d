"""`recompute`: keep the inputs only, and compute the forward again when the backward needs what it would have saved.

torch.utils.checkpoint in its non-reentrant form, which stops the second forward as soon as everything that
was asked for is there, and which puts the global random state back (its copy is part of what is held).
Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174.
"""

from __future__ import annotations

from dataclasses import replace

from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call
from attention_impls.contract import POLICY, Applied, Evidence, Footprint, Implementation, Output, Run, Transform
from attention_impls.evidence import Told, asked_backward, asked_forward, listed, working
from attention_impls.footprint import recomputed

LABEL = "recompute"


def _wrap(inner: Implementation, argument: str | None) -> Implementation:
    if argument is not None:
        raise ValueError(f"{LABEL} takes no argument; got {argument}")

    def prepare(call: Call, lse: bool) -> Run:
        kernel = inner.prepare(call, lse)

        def run(call: Call) -> Output:
            return Output(*checkpoint(kernel, call, use_reentrant=False))

        return Told(run, (kernel,))

    def refusal(call: Call, direction: str) -> str | None:
        if direction == "fwd":
            return f"{POLICY}a forward alone keeps nothing that could be computed again; measure fwdbwd"
        return inner.refuses(call, direction)

    held = Footprint(held=recomputed)
    return replace(inner, prepare=prepare, refusal=refusal, prefill=None, configure=None, footprint=held)


def _applied(evidence: Evidence, bare: Evidence) -> Applied:
    """Proof: the backward runs operators of the forward that no bare backward has.

    Forwards begun or ended are no proof: the second forward is cut off early. Where the bare backward has all
    of the forward's operators, some operator must run there more often than the forward's count explains.
    """
    forward, before = working(asked_forward(bare)), working(asked_backward(bare))
    once, again = asked_forward(evidence), asked_backward(evidence)
    found = {op: again[op] for op in forward if again[op] and not before[op]}
    if not found and all(before[op] for op in forward):
        found = {op: again[op] for op, n in forward.items() if again[op] * n > before[op] * once[op]}
    if not found:
        return Applied(False, "no operator of the forward ran again in the backward")
    return Applied(True, f"in the backward: {listed(found)}")


TRANSFORM = Transform(
    label=LABEL,
    doc="keeps the inputs only and computes the forward again in the backward",
    aims_at="memory",
    wrap=_wrap,
    applied=_applied,
)
