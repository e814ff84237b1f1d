"""`int8_dynamic`, on a layer: its nn.Linear modules become torch.ao's dynamically quantised ones.

Weights are rounded once, symmetric per tensor to 8 bits; activations at every call, affine per tensor to
7 bits (torch keeps one bit free against overflow in its x86 kernels). One large token therefore coarsens all
others, those of other samples in the batch too. There is no backward: torch would run one and leave the gradient of
x out. Source: torch.ao.quantization.quantize_dynamic; the arithmetic is written out below.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attention_impls.contract import Applied, Evidence, Transform, Workload
from attention_impls.layer_parts import replace_linears

LABEL = "int8_dynamic"
_KERNELS = ("x86", "fbgemm")  # engines whose arithmetic is the one written out here
_BECAME = "quantized.dynamic"


class Int8Arithmetic(nn.Module):
    """A linear map as torch.ao's dynamic int8 kernel computes it, in the dtype of its weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = 2.0 * linear.weight.detach().abs().max() / 255.0
        self.weight = (linear.weight.detach() / scale).round().clamp(-128, 127) * scale  # [out, in]
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        low, high = x.min().clamp(max=0.0), x.max().clamp(min=0.0)
        scale = torch.where(high > low, (high - low) / 127.0, torch.ones_like(high))
        zero = (-low / scale).round()
        rounded = ((x / scale).round() + zero).clamp(0, 127) - zero
        return nn.functional.linear(rounded * scale, self.weight, self.bias)


def _wrap_layer(module: nn.Module, argument: str | None) -> nn.Module:
    """Quantises in place. Raises ValueError where no module became int8."""
    if argument is not None:
        raise ValueError(f"{LABEL} takes no argument; got {argument}")
    with deprecations_quietly():
        made: nn.Module = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8, inplace=True)
    if not became_int8(made):
        raise ValueError(f"{LABEL} found no nn.Linear in {type(module).__name__}: nothing would be in int8")
    return made


def became_int8(module: nn.Module) -> list[str]:
    """Names of the modules that compute in int8."""
    return [name for name, part in module.named_modules() if _BECAME in type(part).__module__]


def _definition_layer(module: nn.Module, argument: str | None) -> nn.Module:
    """The same module with every nn.Linear in the written arithmetic."""
    return replace_linears(module, Int8Arithmetic)


def _refuses_layer(workload: Workload, direction: str, device: str) -> str | None:
    if direction != "fwd":
        return "int8 has no backward: torch would run one without a gradient for x"
    if device != "cpu":
        return f"torch.ao's dynamic int8 runs on the CPU, not on {device}"
    if workload.dtype != "f32":
        return f"torch.ao's dynamic int8 takes f32, not {workload.dtype}"
    if not hasattr(torch.ao.quantization, "quantize_dynamic"):
        return "this torch no longer has torch.ao.quantization.quantize_dynamic"
    if torch.backends.quantized.engine not in _KERNELS:
        return f"its arithmetic is written out for {' and '.join(_KERNELS)}, not for {torch.backends.quantized.engine}"
    return None


@contextmanager
def deprecations_quietly() -> Iterator[None]:
    """torch.ao says that it is deprecated, and so does an operator that it calls; nothing else is silenced."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.ao.quantization is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        yield


def _applied(evidence: Evidence, bare: Evidence) -> Applied:
    """Proof: modules became int8, and the int8 operator ran once for each."""
    classes: dict[str, str] = evidence.facts.get("modules", {})
    names = [name for name, found in classes.items() if _BECAME in found]
    calls = evidence.forward["linear_dynamic"]
    text = f"{len(names)} modules in int8 ({', '.join(names) or 'none'}), {calls} calls of linear_dynamic"
    return Applied(bool(names) and calls >= len(names), text)


TRANSFORM = Transform(
    label=LABEL,
    doc="a layer's nn.Linear modules in torch.ao's dynamic int8",
    aims_at="numbers",
    acts_on="layer",
    wrap_layer=_wrap_layer,
    definition_layer=_definition_layer,
    refuses_layer=_refuses_layer,
    applied=_applied,
)
