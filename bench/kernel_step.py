"""A bare kernel as a step: q, k, v and the mechanism's parameters in, judged on sampled rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from attention_impls import catalogue, inputs, judge
from attention_impls.call import Call
from attention_impls.catalogue import Subject
from attention_impls.contract import Evidence, Variant
from attention_impls.evidence import gather
from attention_impls.judge import Errors
from attention_impls.oracle import Answer, answer
from bench.cell import Cell
from bench.step import Drawn, Step


def refuses(subject: Subject, cell: Cell) -> str | None:
    """Why a kernel cannot do a cell, or None."""
    if cell.workload.dtype == "tf32" and cell.device != "cuda":
        return "tf32 exists on CUDA only"
    call = inputs.draw(subject.variant, cell.workload, device="meta", place=cell.device)
    return subject.inner.refuses(call, cell.direction)


def draw(subject: Subject, cell: Cell, sets: int) -> Drawn:
    """Calls, born in the stride order that the kernel wants, with leaves q, k, v and learned parameters."""
    variant, layout = subject.variant, subject.bare.layout
    calls = tuple(
        inputs.draw(variant, cell.workload, which=which, device=cell.device, layout=layout) for which in range(sets)
    )
    names = ("q", "k", "v", *sorted(n for n, p in variant.parameters.items() if p.learned))
    leaves = tuple(tuple(_leaf(call, name) for name in names) for call in calls)
    differentiates = cell.direction != "fwd"
    for tensors in leaves:
        for tensor in tensors:
            tensor.requires_grad_(differentiates)
    upstreams = tuple(inputs.draw_upstream(_like_output(c), i) for i, c in enumerate(calls) if differentiates)
    return Drawn(calls, leaves, names, upstreams)


class KernelStep(Step):
    """Runs an implementation on calls; gradients of the sampled rows' upstream are exact for every leaf."""

    def __init__(self, subject: Subject, cell: Cell, drawn: Drawn, oracle_rows: int) -> None:
        super().__init__(subject, cell, drawn)
        self.rows = inputs.sample_rows(cell.workload.q_len, oracle_rows)
        with self.mode():
            self.run = subject.inner.prepare(drawn.inputs[0], False)

    def forward(self, which: int = 0) -> Tensor:
        """out [B, H, I, E]."""
        return self.run(self.drawn.inputs[which]).out

    def calling(self, which: int) -> Callable[[], Tensor]:
        """The prepared run on one call."""
        run, call = self.run, self.drawn.inputs[which]
        return lambda: run(call).out

    def tensors(self, which: int) -> list[Tensor]:
        """q, k, v and the parameters."""
        call: Call = self.drawn.inputs[which]
        return call.tensors()

    def seen(self, which: int) -> Answer:
        """The sampled rows of its output, every gradient, and of a forward the log-sum-exp where it has one."""
        call = self.drawn.inputs[which]
        at = self.rows.to(call.q.device)
        with self.mode():
            out = self.forward(which)
            if self.differentiates:
                found = self.backward(out, which, inputs.draw_upstream(out, which, self.rows))
                return Answer(out.detach()[:, :, at], None, dict(zip(self.drawn.names, found, strict=True)))
        return Answer(out[:, :, at], self._lse(call, at), {})

    def _lse(self, call: Call, at: Tensor) -> Tensor | None:
        if self.subject.inner.support.lse == "no":
            return None
        with self.mode():
            lse = self.subject.inner.prepare(call, True)(call).lse
        return None if lse is None else lse[:, :, at]

    def expected(self, which: int, dtype: torch.dtype = torch.float64) -> Answer:
        """The definition's answer on the sampled rows, with the stated rounding of its transforms."""
        call, upstream = self.drawn.inputs[which], None
        if self.differentiates:
            like = _like_output(call)
            upstream = inputs.draw_upstream(like, which, self.rows)[:, :, self.rows.to(like.device)]
        learned = frozenset(self.drawn.names[3:])
        return answer(self.subject.definition, call, self.rows, upstream=upstream, dtype=dtype, learned=learned)

    def aim(self, which: int) -> Tensor | None:
        """The rows of what the variant approximates, or of the variant itself where a transform changes numbers."""
        target = _approximated(self.subject.variant)
        if target is None and self.subject.definition is self.subject.variant:
            return None
        return answer(target or self.subject.variant, self.drawn.inputs[which], self.rows).out

    def distances(self, seen: Answer, right: Answer) -> Mapping[str, Errors]:
        """out, lse, dq, dk, dv and d<parameter>."""
        found = {"out": judge.errors(seen.out, right.out)}
        if seen.lse is not None and right.lse is not None:
            found["lse"] = judge.errors(seen.lse, right.lse)
        return found | {f"d{name}": judge.errors(g, right.gradients[name]) for name, g in seen.gradients.items()}

    def evidence(self) -> Evidence:
        """Operators, dtypes and the run's own facts."""
        with self.mode():
            return gather(self.run, self.drawn.inputs[0], self.drawn.upstreams[0] if self.differentiates else None)


def _approximated(variant: Variant) -> Variant | None:
    if not variant.approximates:
        return None
    return catalogue.find(catalogue.implementations(variant.approximates)[0]).variant


def _leaf(call: Call, name: str) -> Tensor:
    given = {"q": call.q, "k": call.k, "v": call.v}
    return given[name] if name in given else call.parameters[name]


def _like_output(call: Call) -> Tensor:
    return call.q.new_empty((*call.q.shape[:3], call.v.shape[-1]))
