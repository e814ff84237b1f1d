"""A layer in training as a step: forward, loss, backward, optimiser; judged by the loss's gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attention_impls import layer_subject
from attention_impls.catalogue import Subject
from attention_impls.contract import Evidence
from attention_impls.evidence import watch_also
from attention_impls.oracle import Answer
from attention_impls.training import OPTIMISERS, loss_gradient, loss_of, sizes_of, state_of
from bench.cell import Cell
from bench.device import Phases
from bench.layer_step import LayerStep
from bench.step import Drawn


class TrainStep(LayerStep):
    """Trains a layer towards random targets. The optimiser has its state from a first step on; weights are put back
    to where they began before they are judged, so that what was timed in between does not matter."""

    def __init__(self, subject: Subject, cell: Cell, drawn: Drawn) -> None:
        super().__init__(subject, cell, drawn)
        self._parameters = dict(self.prepared.module.named_parameters())
        self._began = [p.detach().clone() for p in self._parameters.values()]
        self._optimiser = OPTIMISERS[cell.direction].make(self._parameters.values())
        with self.mode():
            self.once(0)()
        self._put_back()

    def once(self, which: int) -> Callable[[], Any]:
        """One step of training."""
        run, x, target = self.prepared.run, self.drawn.inputs[which], self.drawn.upstreams[which]
        forget, advance = self._optimiser.zero_grad, self._optimiser.step

        def step() -> None:
            forget(set_to_none=True)
            loss_of(run(x), target).backward()
            advance()

        return step

    def phases(self) -> Phases:
        """Loss, gradients, step; the gradients of the step before are gone when it begins."""
        target = self.drawn.upstreams[0]

        def optimise() -> None:
            self._optimiser.step()

        return Phases(
            forward=lambda: loss_of(self.forward(0), target),
            backward=lambda loss: tuple(self._gradients(loss).values()),
            optimise=optimise,
            before=lambda: self._optimiser.zero_grad(set_to_none=True),
        )

    def kept(self) -> Mapping[str, int]:
        """Gradients of the weights, and the optimiser's state."""
        gradients = sum(sizes_of(self._parameters.values()))
        return {"gradients": gradients, "optimiser_state": state_of(self._optimiser)}

    def seen(self, which: int) -> Answer:
        """y and the loss's gradient of every weight, at the weights it began with."""
        self._put_back()
        with self.mode():
            out = self.forward(which)
            found = self._gradients(loss_of(out, self.drawn.upstreams[which]))
        gradients = {name: gradient.clone() for name, gradient in found.items()}
        self._optimiser.zero_grad(set_to_none=True)
        return Answer(out.detach(), None, gradients)

    def _gradients(self, loss: Tensor) -> dict[str, Tensor]:
        loss.backward()
        return {name: p.grad for name, p in self._parameters.items() if p.grad is not None}

    def _put_back(self) -> None:
        self._optimiser.zero_grad(set_to_none=True)
        with torch.no_grad():
            for p, began in zip(self._parameters.values(), self._began, strict=True):
                p.copy_(began)

    def _reference(self, which: int, dtype: torch.dtype, *, rounded: bool) -> Answer:
        x, target = self.drawn.inputs[which], self.drawn.upstreams[which].to("cpu", dtype)
        right = layer_subject.reference(
            self.subject, self.cell.workload, x, lambda y: loss_gradient(y, target), rounded=rounded, dtype=dtype
        )
        return Answer(right.out, None, {name: right.gradients[name] for name in self._parameters})

    def evidence(self) -> Evidence:
        """Operators and dtypes of the layer, and those of the optimiser among the backward's."""
        x, leaves = self.drawn.inputs[0], list(self._parameters.values())
        with self.mode():
            seen = layer_subject.gather(self.prepared, x, self.drawn.upstreams[0], leaves)
            self.once(0)()
            ops = watch_also(self._optimiser.step)
        self._put_back()
        return replace(seen, backward=seen.backward + ops)
