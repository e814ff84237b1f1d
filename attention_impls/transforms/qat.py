"""`qat:int8`, `qat:int4`, `qat:int2`, on a layer: nn.Linear modules fake-quantised, as they are while they are trained.

What a training step costs that is aware of rounding, and what its forward computes. Weights are rounded to the named
bits, symmetric, 32 of a row sharing a scale; tokens to 8, affine, one scale and zero point for each. Gradients pass
through what was rounded and stop at what was clamped; scales have none. Everything stays in floating point: it is for
training, and saves nothing. `attention_impls.qat` trains and converts.
Source: torchao.quantization.qat; Jacob et al. 2017, arXiv 1712.05877. The arithmetic is written out below.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attention_impls import qat
from attention_impls.contract import Applied, Evidence, Transform, Workload
from attention_impls.layer_parts import replace_linears, width
from attention_impls.needs import package
from attention_impls.rounding import straight_through

LABEL = "qat"
TARGETS = {f"int{bits}": bits for bits in qat.BITS}
_BECAME = "FakeQuantizedLinear"
_TOKEN = (-128, 127)
_EPS = torch.finfo(torch.float32).eps


def fake_weight(w: Tensor, bits: int) -> Tensor:
    """w [out, in] rounded to `bits`, symmetric, the scale of a group max|w| / (2^(bits-1) - 1/2)."""
    groups = w.unflatten(-1, (-1, qat.GROUP))
    narrow = groups.detach().float()  # scales and quotients are float32, as there: the largest entry lies on a tie
    half = 2 ** (bits - 1)
    scale = (narrow.abs().amax(-1, keepdim=True) / (half - 0.5)).clamp(min=torch.finfo(torch.float32).smallest_normal)
    return _held(
        groups, (narrow * scale.reciprocal()).round(), scale, torch.zeros_like(scale), (-half, half - 1)
    ).flatten(-2)


def fake_tokens(x: Tensor) -> Tensor:
    """x [..., M] rounded to 8 bits, affine, the range of a token, 0 in it, cut into 255 steps."""
    narrow = x.detach().float()
    low, high = narrow.amin(-1, keepdim=True).clamp(max=0.0), narrow.amax(-1, keepdim=True).clamp(min=0.0)
    scale = ((high - low) / (_TOKEN[1] - _TOKEN[0])).clamp(min=_EPS)
    zero = (_TOKEN[0] - (low / scale).round()).clamp(*_TOKEN)
    return _held(x, (narrow * scale.reciprocal()).round() + zero, scale, zero, _TOKEN)


def _held(x: Tensor, numbers: Tensor, scale: Tensor, zero: Tensor, ends: tuple[int, int]) -> Tensor:
    """What the clamped whole numbers stand for, with the gradient of those x that were not clamped."""
    kept = (numbers >= ends[0]) & (numbers <= ends[1])
    value = (numbers.clamp(*ends) - zero).to(x.dtype) * scale.to(x.dtype)
    return straight_through(torch.where(kept, x, x.detach()), value)


class FakeArithmetic(nn.Module):
    """A linear map as torchao's fake-quantised one computes it, in the dtype of its weight, with gradients."""

    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__()
        self.weight, self.bias, self._bits = linear.weight, linear.bias, bits

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return nn.functional.linear(fake_tokens(x), fake_weight(self.weight, self._bits), self.bias)


def _wrap_layer(module: nn.Module, argument: str | None) -> nn.Module:
    """A fake-quantised copy. Raises ValueError where nothing can be rounded, or a row is no whole number of groups."""
    bits = _bits(argument)
    for name, part in module.named_modules():
        if type(part) is nn.Linear and part.in_features % qat.GROUP:
            raise ValueError(f"{LABEL} rounds weights in groups of {qat.GROUP}; a row of {name} has {part.in_features}")
    return qat.torchao(bits).prepare(module)


def _definition_layer(module: nn.Module, argument: str | None) -> nn.Module:
    """The same module with every nn.Linear in the written arithmetic."""
    return replace_linears(module, lambda linear: FakeArithmetic(linear, _bits(argument)))


def _refuses_layer(workload: Workload, direction: str, device: str) -> str | None:
    if workload.dtype != "f32":
        return f"{LABEL} is held to its arithmetic in f32 only, not in {workload.dtype}"
    if width(workload) % qat.GROUP:
        return f"weights are rounded in groups of {qat.GROUP}, which {width(workload)} channels are no multiple of"
    return None


def _bits(argument: str | None) -> int:
    if argument not in TARGETS:
        raise ValueError(f"{LABEL} needs one of {', '.join(TARGETS)}, as in {LABEL}:int4; got {argument or 'nothing'}")
    return TARGETS[argument]


def _applied(evidence: Evidence, bare: Evidence) -> Applied:
    """Proof: modules were exchanged, and each rounded its weight and its tokens."""
    classes: dict[str, str] = evidence.facts.get("modules", {})
    names = [name for name, found in classes.items() if found.endswith(f".{_BECAME}")]
    rounded = evidence.forward["round"] - bare.forward["round"]
    text = f"{len(names)} modules fake-quantised ({', '.join(names) or 'none'}), {rounded} roundings"
    return Applied(bool(names) and rounded >= 2 * len(names), text)


TRANSFORM = Transform(
    label=LABEL,
    doc="a layer's nn.Linear modules fake-quantised, as in quantisation-aware training",
    aims_at="numbers",
    acts_on="layer",
    wrap_layer=_wrap_layer,
    definition_layer=_definition_layer,
    refuses_layer=_refuses_layer,
    applied=_applied,
    example="int4",
    needs=(package("torchao", "torchao"),),
)
