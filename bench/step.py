"""What is measured, whether a kernel or a layer: seeded inputs, a step of no arguments, and the right answer to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention_impls import training
from attention_impls.catalogue import Subject
from attention_impls.contract import Evidence
from attention_impls.judge import Errors
from attention_impls.oracle import Answer
from attention_impls.training import OPTIMISERS
from bench.cell import Cell
from bench.device import Phases

ORACLE_ROWS = 16


@dataclass(frozen=True, eq=False)
class Drawn:
    """Input sets before anything is prepared: what a step is called with, and `leaves` that gradients go to."""

    inputs: tuple[Any, ...]
    leaves: tuple[tuple[Tensor, ...], ...]
    names: tuple[str, ...]
    upstreams: tuple[Tensor, ...]


class Step(ABC):
    """A subject with its input sets, prepared. Forward-only steps run on inputs that need no gradient; others on
    leaves that do, and nothing is accumulated. The caller sets the gradient mode (`mode`) once, outside what is timed.
    """

    def __init__(self, subject: Subject, cell: Cell, drawn: Drawn) -> None:
        self.subject, self.cell, self.drawn = subject, cell, drawn

    @property
    def differentiates(self) -> bool:
        """True when a step has a backward."""
        return self.cell.direction != "fwd"

    def mode(self) -> Any:
        """The gradient mode a step runs in, as a context."""
        return torch.set_grad_enabled(self.differentiates)

    @abstractmethod
    def forward(self, which: int = 0) -> Tensor:
        """The output on one input set."""

    @abstractmethod
    def calling(self, which: int) -> Callable[[], Tensor]:
        """`forward` of one input set with as little as possible around it."""

    @abstractmethod
    def tensors(self, which: int) -> list[Tensor]:
        """The tensors that hold one input set's values."""

    def backward(self, out: Tensor, which: int = 0, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
        """Gradients of every leaf; zeros where a leaf has no influence."""
        given = self.drawn.upstreams[which] if upstream is None else upstream
        return torch.autograd.grad(out, self.drawn.leaves[which], given, allow_unused=True, materialize_grads=True)

    def once(self, which: int) -> Callable[[], Any]:
        """The function of no arguments that is timed: a forward, and the gradients of a random upstream one."""
        call = self.calling(which)
        if not self.differentiates:
            return call
        leaves, upstream, grad = self.drawn.leaves[which], self.drawn.upstreams[which], torch.autograd.grad
        return lambda: grad(call(), leaves, upstream, allow_unused=True, materialize_grads=True)

    def phases(self) -> Phases:
        """One step of the first input set, in the parts whose memory is told apart."""
        return Phases(self.forward, self.backward if self.differentiates else None)

    def kept(self) -> Mapping[str, int]:
        """Bytes that are there before a step and after it, by what they are; empty where nobody asked."""
        return {}

    def refill(self, target: int, source: int) -> None:
        """Puts the values of one input set into the memory of another: same addresses, other numbers."""
        with torch.no_grad():
            for into, values in zip(self.tensors(target), self.tensors(source), strict=True):
                into.copy_(values)

    @abstractmethod
    def seen(self, which: int) -> Answer:
        """What the step itself answers, on the rows that are judged."""

    @abstractmethod
    def expected(self, which: int, dtype: torch.dtype = torch.float64) -> Answer:
        """What it must answer to the values its input set holds now, by the definition, computed in `dtype`."""

    @abstractmethod
    def aim(self, which: int) -> Tensor | None:
        """The output of what it approximates, or of itself where a transform changes numbers; None if neither."""

    @abstractmethod
    def distances(self, seen: Answer, right: Answer) -> Mapping[str, Errors]:
        """Distances by name: out, lse, d<leaf>."""

    @abstractmethod
    def evidence(self) -> Evidence:
        """What one step on the first input set is seen to do."""


def refuses(subject: Subject, cell: Cell) -> str | None:
    """Why a subject cannot do a cell, or None; asked of shapes alone, on the meta device."""
    from bench import kernel_step, layer_step

    if cell.direction in OPTIMISERS and subject.layer is None:
        return "a kernel has nothing to train; put a layer around it, as in +in:multi_head"
    if cell.direction in OPTIMISERS and (text := training.refuses(cell.direction, cell.workload.torch_dtype)):
        return text
    return kernel_step.refuses(subject, cell) if subject.layer is None else layer_step.refuses(subject, cell)


def draw(subject: Subject, cell: Cell, sets: int) -> Drawn:
    """`sets` input sets of a cell, on its device."""
    from bench import kernel_step, layer_step

    return kernel_step.draw(subject, cell, sets) if subject.layer is None else layer_step.draw(subject, cell, sets)


def prepare(subject: Subject, cell: Cell, drawn: Drawn, *, oracle_rows: int = ORACLE_ROWS) -> Step:
    """A step prepared on the first of the drawn sets; `oracle_rows` of a kernel's are judged, all of a layer's."""
    from bench.kernel_step import KernelStep
    from bench.layer_step import LayerStep
    from bench.train_step import TrainStep

    if subject.layer is None:
        return KernelStep(subject, cell, drawn, oracle_rows)
    if cell.direction in OPTIMISERS:
        return TrainStep(subject, cell, drawn)
    return LayerStep(subject, cell, drawn)


def make(subject: Subject, cell: Cell, sets: int, *, oracle_rows: int = ORACLE_ROWS) -> Step:
    """A step on `sets` input sets, drawn and prepared."""
    return prepare(subject, cell, draw(subject, cell, sets), oracle_rows=oracle_rows)
