"""`int8_torchao`, on a layer: torchao's int8 weights and activations in its nn.Linear modules.

Weights are rounded once, symmetric with a scale for each output row; activations at every call, symmetric with a
scale for each token. A large token therefore coarsens itself alone, a large channel every token that has it. The
product is one of integers (torch._int_mm). There is no backward: torch would run one and leave the gradient of x
out, without a word. Source: torchao.quantization.Int8DynamicActivationInt8WeightConfig; the arithmetic is written
out below.
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor, nn

from attention_impls.contract import Applied, Evidence, Transform, Workload
from attention_impls.layer_parts import replace_linears
from attention_impls.needs import package

LABEL = "int8_torchao"
_WEIGHT = "Int8Tensor"  # the class that torchao gives an int8 weight; the module stays an nn.Linear
_HALF_RANGE = 127.5  # (127 − −128) / 2: the largest magnitude falls on a tie, and rounds to ±127 or −128
_TINY = torch.finfo(torch.float32).eps  # no scale is smaller


def rounded(x: Tensor) -> Tensor:
    """x [..., n] as torchao's int8 would hold it, one scale for each [..., 1], in the dtype of x.

    Scale and quotient are float32 as they are there: the largest entry lies on a tie, which any other precision may
    break the other way.
    """
    narrow = x.float()
    scale = (narrow.abs().amax(-1, keepdim=True) / _HALF_RANGE).clamp(min=_TINY)
    integers = (narrow * scale.reciprocal()).round().clamp(-128, 127)
    return integers.to(x.dtype) * scale.to(x.dtype)


class Int8RowArithmetic(nn.Module):
    """A linear map as torchao's dynamic int8 computes it, in the dtype of its weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = rounded(linear.weight.detach())  # [out, in]
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return nn.functional.linear(rounded(x), self.weight, self.bias)


def became_int8(module: nn.Module) -> list[str]:
    """Names of the modules that compute in int8."""
    return [_owner(name) for name, p in module.named_parameters() if type(p).__name__ == _WEIGHT]


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _wrap_layer(module: nn.Module, argument: str | None) -> nn.Module:
    """Quantises in place. Raises ValueError where no module became int8."""
    if argument is not None:
        raise ValueError(f"{LABEL} takes no argument; got {argument}")
    # Left alone, the config would also set torch's matmul precision and inductor's options for the whole process.
    library = import_module("torchao.quantization")
    library.quantize_(module, library.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False))
    if not became_int8(module):
        raise ValueError(f"{LABEL} found no nn.Linear in {type(module).__name__}: nothing would be in int8")
    return module


def _definition_layer(module: nn.Module, argument: str | None) -> nn.Module:
    """The same module with every nn.Linear in the written arithmetic."""
    return replace_linears(module, Int8RowArithmetic)


def _refuses_layer(workload: Workload, direction: str, device: str) -> str | None:
    if direction != "fwd":
        return "int8 has no backward: torch would run one without a gradient for x"
    if device != "cpu":
        return f"torchao's dynamic int8 is held to its arithmetic on the CPU only, not on {device}"
    if workload.dtype != "f32":
        return f"torchao's dynamic int8 is held to its arithmetic in f32 only, not in {workload.dtype}"
    return None


def _applied(evidence: Evidence, bare: Evidence) -> Applied:
    """Proof: weights became int8, and a product of integers ran once for each."""
    classes: dict[str, str] = evidence.facts.get("tensors", {})
    names = [_owner(name) for name, found in classes.items() if found.endswith(f".{_WEIGHT}")]
    calls = evidence.forward["_int_mm"]
    text = f"{len(names)} modules in int8 ({', '.join(names) or 'none'}), {calls} calls of _int_mm"
    return Applied(bool(names) and calls >= len(names), text)


TRANSFORM = Transform(
    label=LABEL,
    doc="a layer's nn.Linear modules in torchao's dynamic int8",
    aims_at="numbers",
    acts_on="layer",
    wrap_layer=_wrap_layer,
    definition_layer=_definition_layer,
    refuses_layer=_refuses_layer,
    applied=_applied,
    needs=(package("torchao", "torchao"),),
)
