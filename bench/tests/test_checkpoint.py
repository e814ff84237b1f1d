"""Checkpointed layers: the same loss and gradients bit for bit, dropout too; what was computed again, by kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attention_impls import catalogue, inputs, layer_subject
from attention_impls.contract import Workload
from attention_impls.layers.encoder import Encoder
from attention_impls.transforms import checkpoint
from bench.cell import parse_id
from bench.devices.cpu import DEVICE
from bench.step import make, refuses

WORKLOAD = Workload(batch=2, heads=4, kv_heads=4, q_len=33, kv_len=33, head_dim=8, value_dim=8, mask="causal")
ARGUMENTS = (None, "2", "selective")
SETTING = "b2-h4-n96-d16-f32-full"


def _encoder(kernel: str, dropout: float) -> Encoder:
    attention = catalogue.find(f"softmax.{kernel}").inner
    return Encoder(4, True, 4, "gelu", attention, WORKLOAD, inputs.generator("encoder"), dropout)


def _step(module: nn.Module) -> list[Tensor]:
    """The loss, and every gradient, under one global random state."""
    x = layer_subject.draw(WORKLOAD).requires_grad_()
    torch.manual_seed(7)
    loss = module(x, inputs.build_mask(WORKLOAD)).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *module.parameters()])]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kernel", ["naive", "sdpa_flash"])
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_loss_and_gradients_are_the_same_bit_for_bit(argument: str | None, kernel: str, dropout: float) -> None:
    plain = _step(_encoder(kernel, dropout))
    module = checkpoint.TRANSFORM.wrap_layer(_encoder(kernel, dropout), argument)
    assert all(torch.equal(a, b) for a, b in zip(plain, _step(module), strict=True))
    if dropout:
        assert not torch.equal(plain[0], _step(_encoder(kernel, 0.0))[0])  # it dropped something at all


class _Private(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = inputs.generator("its own")

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, generator=self.source) > 0.5)


def test_a_generator_of_its_own_is_refused_because_nobody_puts_it_back() -> None:
    x = torch.ones(64, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(_Private(), x, use_reentrant=False)
    assert not torch.equal(torch.autograd.grad(y.sum(), x)[0], y.detach())  # what would happen
    with pytest.raises(ValueError, match="generator of its own"):
        checkpoint.TRANSFORM.wrap_layer(nn.Sequential(_Private()), None)


def _measured(name: str) -> int:
    torch.set_num_threads(1)
    step = make(catalogue.find(name), parse_id(f"{name}/{SETTING}/fwdbwd/cpu1"), 1)
    with step.mode():
        held = DEVICE.memory(step.phases()).held
    assert held is not None
    return held


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kernel", ["naive", "sdpa_flash"])
@pytest.mark.parametrize(("argument", "every"), [("", 1), (":2", 2), (":3", 3)])
def test_bytes_held_are_the_formula(kernel: str, argument: str, every: int, norm: str) -> None:
    bare = f"softmax.{kernel}+in:encoder:layers-4:norm-{norm}"
    subject = catalogue.find(bare)
    workload = parse_id(f"{bare}/{SETTING}/fwdbwd/cpu1").workload
    assert subject.layer is not None and subject.layer.held is not None
    whole = subject.layer.held(subject.inner, workload)
    assert whole is not None
    formula = checkpoint.held(whole, 4, every, workload)
    assert abs(_measured(f"{bare}+checkpoint{argument}") - formula) <= 1024 + formula // 100


@pytest.mark.parametrize("kernel", ["naive", "sdpa_flash"])
def test_what_is_kept_selectively_are_the_products(kernel: str) -> None:
    name = f"softmax.{kernel}+in:encoder:layers-3:ffn-2+checkpoint:selective"
    workload = parse_id(f"{name}/{SETTING}/fwdbwd/cpu1").workload
    held = catalogue.find(name).inner.footprint.held
    assert held is not None
    formula = 3 * checkpoint.held_selectively(2, held(workload) if kernel == "sdpa_flash" else 0, workload)
    assert abs(_measured(name) - formula) <= 1024 + formula // 100


@pytest.mark.parametrize(
    ("argument", "again"),
    [
        ("", "addmm×20"),
        (":2", "addmm×10"),
        (":selective", "gelu×4"),
    ],  # q, k, v, o and up; the last product is not needed
)
def test_what_was_computed_again_is_counted_by_kind(argument: str, again: str) -> None:
    bare = "softmax.sdpa_flash+in:encoder:layers-4"
    steps = [
        make(catalogue.find(name), parse_id(f"{name}/{SETTING}/fwdbwd/cpu1"), 1)
        for name in (bare, bare + "+checkpoint" + argument)
    ]
    plain, seen = (step.evidence() for step in steps)
    proof = checkpoint.TRANSFORM.applied(seen, plain)
    assert proof.ok and again in proof.text
    assert ("addmm" in proof.text) == ("selective" not in argument)
    assert not checkpoint.TRANSFORM.applied(plain, plain).ok


def test_names_of_parameters_stay_and_a_step_of_training_is_judged() -> None:
    bare, wrapped = (
        layer_subject.prepare(catalogue.find(name), WORKLOAD).module
        for name in ("softmax.naive+in:encoder:layers-2", "softmax.naive+in:encoder:layers-2+checkpoint")
    )
    assert [name for name, _ in bare.named_parameters()] == [name for name, _ in wrapped.named_parameters()]


@pytest.mark.parametrize(
    ("argument", "text"),
    [("0", "whole number"), ("1", "whole number"), ("all", "whole number"), ("5", "takes no block")],
)
def test_arguments_without_sense_are_refused(argument: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        checkpoint.TRANSFORM.wrap_layer(_encoder("naive", 0.0), argument)


def test_a_forward_alone_is_refused() -> None:
    name = "softmax.naive+in:multi_head+checkpoint"
    assert "keeps nothing" in str(refuses(catalogue.find(name), parse_id(f"{name}/{SETTING}/fwd/cpu1")))
    assert refuses(catalogue.find(name), parse_id(f"{name}/{SETTING}/train/cpu1")) is None
