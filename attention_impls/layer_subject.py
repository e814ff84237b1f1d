"""A layer as a thing to measure: what it is given, when it is refused, how it is prepared, what it must answer.

The module is built from a generator seeded by its name, so that the layer measured and the one that judges
it are the same. What it must answer is the same module in float64 with the definition itself as its
attention, every row of it, and with the stated arithmetic of the transforms that change numbers on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attention_impls import inputs, judge
from attention_impls.call import Call
from attention_impls.catalogue import Subject
from attention_impls.contract import Evidence, Implementation, Layer, Output, Run, Variant, Workload
from attention_impls.evidence import added, watch
from attention_impls.judge import Errors
from attention_impls.layer_parts import Attending, width
from attention_impls.mask import Mask
from attention_impls.oracle import in_parts

MODULES = "modules"  # fact of a layer: the class of every named module, by its name
TENSORS = "tensors"  # fact of a layer: the class of every named parameter, by its name
WEIGHT_BYTES = "weight_bytes"  # fact of a layer: bytes of everything that its state_dict holds


@dataclass(frozen=True, eq=False)
class Prepared:
    """A layer's module with its mask, ready to run on x [B, I, M]."""

    module: nn.Module
    mask: Mask

    def run(self, x: Tensor) -> Tensor:
        """x [B, I, M] -> y [B, I, M]."""
        y: Tensor = self.module(x, self.mask)
        return y

    def leaves(self, x: Tensor) -> dict[str, Tensor]:
        """What gradients go to: x and every parameter, by name."""
        return {"x": x, **dict(self.module.named_parameters())}

    def facts(self) -> Mapping[str, Any]:
        """The class of every named module and of every named parameter, the bytes of all weights, and what the
        implementations inside say of themselves."""
        inside = added(m.facts() for m in self.module.modules() if isinstance(m, Attending))
        return {
            **inside,
            MODULES: {name: _class(m) for name, m in self.module.named_modules() if name},
            TENSORS: {name: _class(p) for name, p in self.module.named_parameters()},
            WEIGHT_BYTES: weight_bytes(self.module),
        }


@dataclass(frozen=True)
class LayerAnswer:
    """y [B, I, M] and gradients by leaf name ("x", "q.weight", …), in one dtype."""

    out: Tensor
    gradients: dict[str, Tensor]


def refuses(subject: Subject, workload: Workload, direction: str, device: str) -> str | None:
    """Why this layer cannot do a workload, or None. Asked of shapes alone."""
    layer = layer_of(subject)
    if workload.dtype == "tf32" and device != "cuda":
        return "tf32 exists on CUDA only"
    reason = layer.refuses(subject.inner, workload) if layer.refuses else None
    asked = (t.refuses_layer(workload, direction, device) for t, _ in subject.layer_transforms if t.refuses_layer)
    reason = reason or next((text for text in asked if text), None)
    if reason:
        return reason
    inside = layer.inside(workload) if layer.inside else workload
    call = inputs.draw(subject.variant, inside, device="meta", place=device)
    return subject.inner.refuses(call, "fwd" if direction == "fwd" else "fwdbwd")


def draw(workload: Workload, which: int = 0, device: str = "cpu") -> Tensor:
    """Input set number `which`: tokens x [B, I, M]."""
    return inputs.draw_tokens(workload, width(workload), which, device)


def prepare(subject: Subject, workload: Workload, device: str = "cpu") -> Prepared:
    """The module with its transforms on, its attention prepared, in the gradient mode of the caller.

    Raises ValueError where a transform finds nothing to act on.
    """
    module = _build(subject, subject.inner, workload)
    for transform, argument in subject.layer_transforms:
        if transform.wrap_layer is None:
            raise ValueError(f"transform {transform.label} cannot wrap a layer")
        module = transform.wrap_layer(module, argument)
    made = Prepared(module.to(device), inputs.build_mask(workload, device))
    blank = torch.zeros((workload.batch, workload.q_len, width(workload)), dtype=workload.torch_dtype, device=device)
    made.run(blank.requires_grad_(torch.is_grad_enabled()))
    return made


def reference(
    subject: Subject,
    workload: Workload,
    x: Tensor,
    upstream: Tensor | Callable[[Tensor], Tensor] | None = None,
    *,
    rounded: bool = True,
    dtype: torch.dtype = torch.float64,
) -> LayerAnswer:
    """What the layer must answer to x, and the gradients of `upstream` [B, I, M] where it is given, or where it is
    made of the answer y (the gradient of a loss).

    rounded: with the arithmetic that its layer transforms state; False is the layer without them, from
    which their distance is measured. dtype: float64, or a narrower one for the yardstick.
    """
    module = _build(subject, defined(subject.definition), workload).to(dtype)
    for transform, argument in subject.layer_transforms if rounded else ():
        if transform.definition_layer:
            module = transform.definition_layer(module, argument)
    exact = Prepared(module, inputs.build_mask(workload))
    given = x.detach().to("cpu", dtype).requires_grad_(upstream is not None)
    with torch.set_grad_enabled(upstream is not None):
        out = exact.run(given)
    if upstream is None:
        return LayerAnswer(out, {})
    leaves = exact.leaves(given)
    toward = upstream if isinstance(upstream, Tensor) else upstream(out.detach())
    found = torch.autograd.grad(
        out, list(leaves.values()), toward.to("cpu", dtype), allow_unused=True, materialize_grads=True
    )
    return LayerAnswer(out.detach(), dict(zip(leaves, found, strict=True)))


def errors(seen: LayerAnswer, right: LayerAnswer) -> dict[str, Errors]:
    """Distances by name: "out", "dx", "dq", …, a projection's weight and bias taken as one matrix [out, in + 1].

    A bias is a weight on a constant input. Alone it may have no gradient to be measured against: that of
    softmax's key bias is zero, for it moves all logits of a row alike.
    """
    got, expected = _projections(seen.gradients), _projections(right.gradients)
    found = {f"d{name}": judge.errors(value, expected[name]) for name, value in got.items()}
    return {"out": judge.errors(seen.out, right.out), **found}


def _projections(gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    joined = {}
    for name, value in gradients.items():
        owner, _, kind = name.rpartition(".")
        bias = gradients.get(f"{owner}.bias")
        if kind == "weight" and bias is not None:
            joined[owner] = torch.cat([value.view(len(bias), -1), bias.unsqueeze(-1)], -1)  # a norm's is a vector
        elif kind != "bias" or f"{owner}.weight" not in gradients:
            joined[owner if kind == "weight" else name] = value
    return joined


def gather(
    prepared: Prepared, x: Tensor, upstream: Tensor | None = None, leaves: Sequence[Tensor] | None = None
) -> Evidence:
    """What one step of the layer was seen to do; gradients go to `leaves`, by default x and every parameter."""
    to = list(prepared.leaves(x).values()) if leaves is None else leaves
    return watch(lambda: prepared.run(x), to, upstream, prepared.facts())


def defined(variant: Variant) -> Implementation:
    """The definition itself as an implementation: every row of it, in the dtype of the call."""

    def prepare(call: Call, lse: bool) -> Run:
        rows = torch.arange(call.q.shape[2], device=call.q.device)
        return lambda call: Output(*in_parts(variant, call, rows))

    return Implementation("definition", variant, prepare)


def weight_bytes(module: nn.Module) -> int:
    """Bytes of everything that the module's state_dict holds: weights, biases, buffers, scales of rounded weights."""
    kept: list[object] = tree_leaves(module.state_dict())
    return sum(_bytes(t) for t in kept if isinstance(t, Tensor))


def _bytes(t: Tensor) -> int:
    parts = getattr(t, "__tensor_flatten__", None)  # what a tensor made of tensors consists of
    if parts is None:
        return t.numel() * t.element_size()
    return sum(_bytes(getattr(t, name)) for name in parts()[0])


def _class(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}"


def layer_of(subject: Subject) -> Layer:
    """The subject's layer. Raises ValueError for a bare kernel."""
    if subject.layer is None:
        raise ValueError(f"{subject.name} is no layer; add +in:multi_head")
    return subject.layer


def _build(subject: Subject, attention: Implementation, workload: Workload) -> nn.Module:
    layer = layer_of(subject)
    return layer.build(attention, workload, inputs.generator(f"layer/{subject.name.layer}"))
