"""What layers are made of: projections drawn from a generator, and the place where attention happens.

Axes: B batch, I tokens, M model width (query heads × head size), H query heads, G key/value heads, D, E.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attention_impls import inputs
from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter, Run, Workload
from attention_impls.evidence import facts_of
from attention_impls.mask import Mask


def width(workload: Workload) -> int:
    """M, the size of a token: query heads × head size."""
    return workload.heads * workload.head_dim


def only_self(workload: Workload) -> str | None:
    """A sentence where a layer of self-attention would need other keys than its own tokens, else None."""
    if workload.q_len == workload.kv_len:
        return None
    return f"it is self-attention: {workload.q_len} tokens cannot see {workload.kv_len} keys; leave kv_len out"


def linear(size_in: int, size_out: int, w: Workload, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """nn.Linear in the workload's dtype, uniform within ±size_in^-1/2, drawn from `generator` alone."""
    made: nn.Linear = nn.utils.skip_init(nn.Linear, size_in, size_out, bias=bias, dtype=w.torch_dtype)
    bound = 1.0 / math.sqrt(size_in)
    with torch.no_grad():
        for parameter in made.parameters():
            drawn = torch.rand(parameter.shape, generator=generator)
            parameter.copy_(drawn.mul_(2.0 * bound).sub_(bound))
    return made


def replace_linears(module: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """The module with every plain nn.Linear inside it replaced, in place, by what `make` makes of it."""
    for name, part in list(module.named_modules()):
        if name and type(part) is nn.Linear:
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, make(part))
    return module


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, I, H·D] -> [B, H, I, D], a view."""
    return x.view(*x.shape[:2], heads, x.shape[-1] // heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, H, I, E] -> [B, I, H·E]."""
    return x.transpose(1, 2).flatten(-2)


class Attending(nn.Module):
    """An implementation inside a layer, with the parameters of its mechanism as parts of the layer.

    Learned weights become nn.Parameter, gates a projection of the tokens and its squash, constants and
    random features buffers. The implementation is prepared at the first forward for a mask and a shape, in
    the gradient mode of that forward, and reused while both stay the same. `scale` is the layer's own, where it is
    not the mechanism's for the head size inside.
    """

    def __init__(
        self,
        attention: Implementation,
        workload: Workload,
        generator: torch.Generator,
        *,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self._attention, self._given = attention, attention.variant.parameters
        self._scale = attention.variant.scale(workload.head_dim) if scale is None else scale
        self._shapes = {name: p.shape(workload) for name, p in self._given.items()}
        self._prepared: tuple[Mask, Any, Run] | None = None
        self.gates, self.weights = nn.ModuleDict(), nn.ParameterDict()
        for name, p in self._given.items():
            if p.role == "token":
                size = math.prod(self._gate_sizes(name, p))
                self.gates[name] = linear(width(workload), size, workload, generator)
            elif p.role == "weight":
                self.weights[name] = nn.Parameter(inputs.draw_parameter(name, p, workload))
            else:
                self.register_buffer(name, inputs.draw_parameter(name, p, workload))

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Tokens x [B, I, M], q [B, H, I, D], k [B, G, I, D], v [B, G, I, E] -> out [B, H, I, E]."""
        values = {name: self._value(name, p, x) for name, p in self._given.items()}
        axes = {name: p.axes for name, p in self._given.items()}
        call = Call(q, k, v, mask, self._scale, values, axes)
        return self._run(call)(call).out

    def facts(self) -> Mapping[str, Any]:
        """What the implementation inside says of itself, once it is prepared."""
        return {} if self._prepared is None else facts_of(self._prepared[2])

    def _run(self, call: Call) -> Run:
        here = (call.q.shape, call.k.shape, call.v.shape, call.q.dtype, call.q.device, torch.is_grad_enabled())
        if self._prepared is None or self._prepared[0] is not call.mask or self._prepared[1] != here:
            self._prepared = (call.mask, here, self._attention.prepare(call, False))
        return self._prepared[2]

    def _value(self, name: str, p: Parameter, x: Tensor) -> Tensor:
        if p.role == "weight":
            weight: Tensor = self.weights[name]
            return weight
        return self._gate(name, p, x) if p.role == "token" else self.get_buffer(name)

    def _gate(self, name: str, p: Parameter, x: Tensor) -> Tensor:
        """A projection of every token, squashed, its axes in the order that the mechanism states."""
        letters = p.axes.split()
        token = next(letter for letter in letters if letter in "IJ")
        born = ["B", token, *(letter for letter in letters if letter not in ("B", token))]
        projected: Tensor = self.gates[name](x)
        gate = projected.view(*x.shape[:2], *self._gate_sizes(name, p)).permute([born.index(a) for a in letters])
        return p.squash(gate) if p.squash else gate

    def _gate_sizes(self, name: str, p: Parameter) -> tuple[int, ...]:
        """Sizes of a gate beside batch and tokens. Raises ValueError for a gate without a token axis."""
        letters = p.axes.split()
        if "B" not in letters or not {"I", "J"} & set(letters):
            raise ValueError(f"token parameter {name!r} has axes {p.axes!r}; it needs B and one of I, J")
        token = next(letter for letter in letters if letter in "IJ")
        return tuple(n for letter, n in zip(letters, self._shapes[name], strict=True) if letter not in ("B", token))
