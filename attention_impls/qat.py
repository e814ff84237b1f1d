"""Quantisation-aware training of a layer: its nn.Linear modules fake-quantised, trained, converted.

A fake-quantised module rounds weights and tokens in the forward and stays floating-point, so that it can be trained;
gradients pass straight through the rounding. `prepare` makes it, `convert` makes the quantised one of it,
`post_training` quantises a float module with no training at all: each works on a copy. torchao's fake form computes
what its converted one computes; torch.ao's observes 8 bits while it trains and converts to a live range of 7.

Training does not always pay. From a float optimum, 8 bits are no better for it, and a large rate makes any worse;
with 2 and 4 bits and a small rate the trained module is the better one (docs/quantisation.md).
Source: Jacob et al. 2017, arXiv 1712.05877; Bengio et al. 2013, arXiv 1308.3432 (the straight-through gradient).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from attention_impls.needs import Need, package
from attention_impls.transforms.int8_dynamic import deprecations_quietly

BITS = (8, 4, 2)
GROUP = 32  # weights of a row that share a scale
Change = Callable[[nn.Module], nn.Module]
Batch = tuple[Tensor, Tensor]
Predict = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Scheme:
    """One way to quantise: three changes of a module, none of which touches the module it is given."""

    name: str
    prepare: Change
    convert: Change
    post_training: Change
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True)
class SideBySide:
    """Relative distances to the float module on tokens that were not trained on.

    gap: relative distance between the fake-quantised and the converted module's outputs. losses: one a step.
    """

    post_training: float
    untrained: float
    fake: float
    converted: float
    gap: float
    losses: tuple[float, ...]


def torchao(bits: int, group: int = GROUP) -> Scheme:
    """Weights of 8, 4 or 2 bits, symmetric with a scale for `group` of a row; tokens of 8, with one for each token.

    The converted module computes in floating point on what the integers stand for: it saves bytes, not time. Raises
    ValueError for another number of bits, or a group below 1.
    """
    if bits not in BITS or group < 1:
        raise ValueError(f"weights have {', '.join(map(str, BITS))} bits in groups of 1 or more; got {bits}, {group}")

    def quantised(module: nn.Module, step: str) -> nn.Module:
        library, made = import_module("torchao.quantization"), deepcopy(module)
        base = library.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=getattr(torch, f"int{bits}"), weight_granularity=library.PerGroup(group)
        )
        qat = import_module("torchao.quantization.qat").QATConfig
        library.quantize_(made, qat(base, step=step) if step else base)
        return _changed(made, module)

    return Scheme(
        f"torchao:{bits}",
        prepare=lambda module: quantised(module, "prepare"),
        convert=lambda module: quantised(module, "convert"),
        post_training=lambda module: quantised(module, ""),
        needs=(package("torchao", "torchao"),),
    )


def torch_ao() -> Scheme:
    """torch.ao's dynamic int8: weights per tensor, tokens per tensor when converted (see `int8_dynamic`)."""
    ao: Any = torch.ao
    fake, real = ao.nn.qat.dynamic.Linear, ao.nn.quantized.dynamic.Linear

    def prepare(module: nn.Module) -> nn.Module:
        made: Any = deepcopy(module).train()
        with deprecations_quietly():
            made.qconfig = ao.quantization.default_dynamic_qat_qconfig
            return _changed(ao.quantization.prepare_qat(made, mapping={nn.Linear: fake}), module)

    def convert(module: nn.Module) -> nn.Module:
        with deprecations_quietly():
            return _changed(ao.quantization.convert(deepcopy(module).train(False), mapping={fake: real}), module)

    def post_training(module: nn.Module) -> nn.Module:
        with deprecations_quietly():
            made = ao.quantization.quantize_dynamic(deepcopy(module), {nn.Linear}, dtype=torch.qint8)
        return _changed(made, module)

    return Scheme("torch_ao", prepare, convert, post_training)


def train(module: nn.Module, batches: Sequence[Batch], predict: Predict, *, rate: float, steps: int) -> list[float]:
    """Trains in place on the mean squared error with AdamW without decay, the batches in turn; the loss of each step.

    predict(module, x) is the output that is held against the batch's second tensor.
    """
    optimiser = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.0, foreach=False)
    losses = []
    for step in range(steps):
        x, wanted = batches[step % len(batches)]
        loss = (predict(module, x) - wanted).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def side_by_side(
    scheme: Scheme, module: nn.Module, tokens: Sequence[Tensor], predict: Predict, *, rate: float, steps: int
) -> SideBySide:
    """Quantises `module` after training and aware of it, its own float outputs as what is wanted.

    tokens: inputs [B, I, M]; the last is held out and measured on, the others are trained on.
    """
    with torch.no_grad():
        *batches, held_out = [(x, predict(module, x)) for x in tokens]

    def answer(of: nn.Module) -> Tensor:
        with torch.no_grad():
            return predict(of, held_out[0])

    fake = scheme.prepare(module)
    untrained = _distance(answer(fake), held_out[1])
    losses = train(fake, batches, predict, rate=rate, steps=steps)
    trained, converted = answer(fake.train(False)), answer(scheme.convert(fake))
    return SideBySide(
        post_training=_distance(answer(scheme.post_training(module)), held_out[1]),
        untrained=untrained,
        fake=_distance(trained, held_out[1]),
        converted=_distance(converted, held_out[1]),
        gap=_distance(converted, trained),
        losses=tuple(losses),
    )


def _distance(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


def _changed(made: nn.Module, before: nn.Module) -> nn.Module:
    """`made`. Raises ValueError where its linear maps are of the same classes as before: nothing was quantised."""
    if _kinds(made) == _kinds(before):
        raise ValueError(f"no module of {type(before).__name__} was changed: it has no nn.Linear to quantise")
    return made


def _kinds(module: nn.Module) -> list[tuple[type, type]]:
    return [(type(part), type(getattr(part, "weight", None))) for part in module.modules()]
