"""A layer as a step: tokens x [B, I, M] in, y [B, I, M] out, judged on every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from attention_impls import inputs, layer_subject
from attention_impls.catalogue import Subject
from attention_impls.contract import Evidence
from attention_impls.judge import Errors
from attention_impls.layer_subject import LayerAnswer
from attention_impls.oracle import Answer
from bench.cell import Cell
from bench.step import Drawn, Step


def refuses(subject: Subject, cell: Cell) -> str | None:
    """Why a layer cannot do a cell, or None."""
    return layer_subject.refuses(subject, cell.workload, cell.direction, cell.device)


def draw(subject: Subject, cell: Cell, sets: int) -> Drawn:
    """Tokens; the parameters' leaves are born with the module, in `LayerStep`."""
    tokens = tuple(layer_subject.draw(cell.workload, which, cell.device) for which in range(sets))
    differentiates = cell.direction != "fwd"
    for x in tokens:
        x.requires_grad_(cell.direction == "fwdbwd")  # training differentiates the weights alone
    upstreams = tuple(inputs.draw_upstream(x, which) for which, x in enumerate(tokens) if differentiates)
    return Drawn(tokens, tuple((x,) for x in tokens), ("x",), upstreams)


class LayerStep(Step):
    """Runs a layer's module; gradients go to x and to every parameter."""

    def __init__(self, subject: Subject, cell: Cell, drawn: Drawn) -> None:
        with torch.set_grad_enabled(cell.direction != "fwd"):
            self.prepared = layer_subject.prepare(subject, cell.workload, cell.device)
        named = [self.prepared.leaves(x) for x in drawn.inputs]
        leaves = tuple(tuple(each.values()) for each in named)
        super().__init__(subject, cell, Drawn(drawn.inputs, leaves, tuple(named[0]), drawn.upstreams))

    def forward(self, which: int = 0) -> Tensor:
        """y [B, I, M]."""
        return self.prepared.run(self.drawn.inputs[which])

    def calling(self, which: int) -> Callable[[], Tensor]:
        """The module on one set of tokens."""
        run, x = self.prepared.run, self.drawn.inputs[which]
        return lambda: run(x)

    def tensors(self, which: int) -> list[Tensor]:
        """x; the weights are the layer's, not the input's."""
        return [self.drawn.inputs[which]]

    def seen(self, which: int) -> Answer:
        """y, and every gradient."""
        with self.mode():
            out = self.forward(which)
            found = self.backward(out, which) if self.differentiates else ()
        names = self.drawn.names if self.differentiates else ()
        return Answer(out.detach(), None, dict(zip(names, found, strict=True)))

    def expected(self, which: int, dtype: torch.dtype = torch.float64) -> Answer:
        """The same module in `dtype`, the definition as its attention, the stated arithmetic of its transforms on."""
        return self._reference(which, dtype, rounded=True)

    def _reference(self, which: int, dtype: torch.dtype, *, rounded: bool) -> Answer:
        upstream = self.drawn.upstreams[which] if self.differentiates else None
        x = self.drawn.inputs[which]
        right = layer_subject.reference(self.subject, self.cell.workload, x, upstream, rounded=rounded, dtype=dtype)
        return Answer(right.out, None, right.gradients)

    def aim(self, which: int) -> Tensor | None:
        """The layer without the transforms that change numbers, where it has any."""
        if not any(transform.definition_layer for transform, _ in self.subject.layer_transforms):
            return None
        return self._reference(which, torch.float64, rounded=False).out

    def distances(self, seen: Answer, right: Answer) -> Mapping[str, Errors]:
        """out, dx and d<projection>."""
        return layer_subject.errors(LayerAnswer(seen.out, seen.gradients), LayerAnswer(right.out, right.gradients))

    def evidence(self) -> Evidence:
        """Operators, dtypes and the class of every module."""
        with self.mode():
            upstream = self.drawn.upstreams[0] if self.differentiates else None
            return layer_subject.gather(self.prepared, self.drawn.inputs[0], upstream)
