"""Quantisation-aware training against quantisation after it: errors side by side, and what is exact about them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attention_impls import catalogue, inputs, layer_subject, qat
from attention_impls.contract import Workload
from attention_impls.transforms import qat as transform

WORKLOAD = Workload(batch=8, heads=4, kv_heads=4, q_len=16, kv_len=16, head_dim=16, value_dim=16)
MASK = inputs.build_mask(WORKLOAD)
SMALL_RATE, LARGE_RATE = 3e-5, 1e-3
installed = pytest.mark.skipif(qat.torchao(8).needs[0].missing() is not None, reason="torchao is not here")


def _layer() -> nn.Module:
    return layer_subject.prepare(catalogue.find("softmax.naive+in:multi_head"), WORKLOAD).module


def _predict(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, MASK)


@cache
def _compared(bits: int, rate: float = SMALL_RATE, steps: int = 200) -> qat.SideBySide:
    """bits 0: torch.ao's dynamic int8."""
    tokens = [layer_subject.draw(WORKLOAD, which) for which in range(9)]
    scheme = qat.torchao(bits) if bits else qat.torch_ao()
    return qat.side_by_side(scheme, _layer(), tokens, _predict, rate=rate, steps=steps)


@installed
@pytest.mark.parametrize("bits", qat.BITS)
def test_torchao_converts_to_exactly_what_it_trained(bits: int) -> None:
    found = _compared(bits, steps=200 if bits == 2 else 10)
    assert found.gap == 0.0
    assert found.untrained == pytest.approx(found.post_training, rel=1e-6)


def test_torch_ao_converts_to_within_ten_percent_of_what_it_trained() -> None:
    found = _compared(0, steps=20)
    assert 0.0 < found.gap < 0.1
    assert found.fake < 0.05 and found.converted < 0.05


@installed
def test_two_bits_are_better_for_training_at_a_small_rate_and_worse_at_a_large_one() -> None:
    small, large = _compared(2), _compared(2, LARGE_RATE)
    assert small.converted < 0.95 * small.post_training
    assert large.converted > small.post_training
    assert sum(small.losses[-8:]) < sum(small.losses[:8])


@installed
def test_fewer_bits_cost_more() -> None:
    """A step is twice as large for every bit less: from 8 to 4 bits about 16 times, had the tokens' 8 bits no share."""
    eight, four, two = (_compared(bits, steps=200 if bits == 2 else 10).post_training for bits in (8, 4, 2))
    assert 5 * eight < four and 3 * four < two < 0.6


def _rounded_weight(w: Tensor, bits: int) -> Tensor:
    """Groups of 32 of a row to whole multiples of max / (2^(bits-1) - 0.5), from -2^(bits-1) to 2^(bits-1) - 1."""
    groups = w.unflatten(-1, (-1, qat.GROUP))
    scale = groups.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 0.5)
    return ((groups * (1 / scale)).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * scale).flatten(-2)


@installed
@pytest.mark.parametrize("bits", qat.BITS)
def test_fake_weights_are_those_of_the_arithmetic_written_here(bits: int) -> None:
    linear = nn.Sequential(nn.Linear(64, 48, bias=False))
    with torch.no_grad():
        linear[0].weight.copy_(torch.randn(48, 64, generator=inputs.generator("qat")))
    fake = qat.torchao(bits).prepare(linear)[0]
    expected = _rounded_weight(linear[0].weight.detach(), bits)
    torch.testing.assert_close(fake.weight_fake_quantizer(fake.weight).detach(), expected, rtol=1e-6, atol=1e-7)


@installed
@pytest.mark.parametrize("scheme", [partial(qat.torchao, 4), qat.torch_ao], ids=["torchao", "torch_ao"])
def test_a_fake_quantised_layer_has_a_gradient_for_every_weight_and_leaves_the_float_one_alone(scheme: object) -> None:
    layer = _layer()
    before = deepcopy(layer.state_dict())
    fake = scheme().prepare(layer)
    x = layer_subject.draw(WORKLOAD).requires_grad_()
    _predict(fake, x).square().sum().backward()
    assert x.grad is not None and float(x.grad.norm()) > 0
    assert all(
        p.grad is not None and float(p.grad.norm()) > 0 for name, p in fake.named_parameters() if "weight" in name
    )
    scheme().convert(fake), scheme().post_training(layer)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    assert type(layer.get_submodule("q")) is nn.Linear


@installed
@pytest.mark.parametrize("change", ["prepare", "post_training"])
@pytest.mark.parametrize("scheme", [partial(qat.torchao, 4), qat.torch_ao], ids=["torchao", "torch_ao"])
def test_a_module_without_linear_maps_is_refused(scheme: object, change: str) -> None:
    with pytest.raises(ValueError, match="no module of Sequential was changed"):
        getattr(scheme(), change)(nn.Sequential(nn.ReLU()))


def test_bits_that_nobody_has_are_refused() -> None:
    with pytest.raises(ValueError, match="8, 4, 2 bits"):
        qat.torchao(3)


LAYER = "softmax.naive+in:multi_head"


@installed
@pytest.mark.parametrize("bits", ["int8", "int4", "int2"])
def test_the_transform_is_its_arithmetic_in_value_and_in_every_gradient(bits: str) -> None:
    subject = catalogue.find(f"{LAYER}+qat:{bits}")
    workload = replace(WORKLOAD, mask="causal", inputs="heavytail")
    assert layer_subject.refuses(subject, workload, "fwdbwd", "cpu") is None
    x = layer_subject.draw(workload).requires_grad_()
    prepared = layer_subject.prepare(subject, workload)
    out, leaves = prepared.run(x), prepared.leaves(x)
    upstream = inputs.draw_upstream(out)
    found = torch.autograd.grad(out, list(leaves.values()), upstream)
    seen = layer_subject.LayerAnswer(out.detach(), dict(zip(leaves, found, strict=True)))
    right = layer_subject.reference(subject, workload, x.detach(), upstream)
    assert set(seen.gradients) == set(right.gradients)
    distances = layer_subject.errors(seen, right)
    assert all(e.relative < 2e-3 for e in distances.values()), distances


def test_fake_tokens_by_hand() -> None:
    """From -1 to 3 in 255 steps of 4/255: -63.75, 133.875 and 191.25 steps; zero stands at -128 + 64, so 191 is 127."""
    x = torch.tensor([[-1.0, 0.0, 2.1, 3.0]], dtype=torch.float64)
    expected = torch.tensor([[-64.0, 0.0, 134.0, 191.0]], dtype=torch.float64) * 4 / 255
    assert torch.allclose(transform.fake_tokens(x), expected, rtol=1e-6)


def test_fake_weights_by_hand() -> None:
    """Groups of 32 with the scales 1/7.5 and 3/7.5: 3.75, -5.625, 2.25 and -2.625 steps."""
    w = torch.zeros(1, 64, dtype=torch.float64)
    w[0, 0], w[0, 1], w[0, 2], w[0, 20], w[0, 32], w[0, 33] = 1.0, 0.5, -0.75, 0.3, 3.0, -1.05
    rounded = transform.fake_weight(w, 4)[0, [0, 1, 2, 20, 32, 33]]
    expected = torch.tensor([7.0, 4.0, -6.0, 2.0, 21.0, -9.0], dtype=torch.float64) / 7.5
    assert torch.allclose(rounded, expected, rtol=1e-6)


def test_a_weight_that_was_clamped_has_no_gradient() -> None:
    """Of 4 bits the largest of a group lies at 7.5: where float32 says 8, it is clamped to 7; at -7.5 nothing is."""
    w = torch.randn((40, 32), generator=inputs.generator("clamped")).requires_grad_()
    transform.fake_weight(w, 4).sum().backward()
    given = w.detach().numpy()
    scale = np.abs(given).max(1, keepdims=True) / np.float32(7.5)
    beyond = np.rint(given * (np.float32(1) / scale)) > 7
    assert 0 < beyond.sum() < 40
    assert np.array_equal(w.grad.numpy(), np.where(beyond, 0.0, 1.0))


@installed
def test_the_transform_lists_what_it_exchanged_and_proves_that_it_rounded() -> None:
    x = layer_subject.draw(WORKLOAD)
    prepared = layer_subject.prepare(catalogue.find(f"{LAYER}+qat:int4"), WORKLOAD)
    seen = layer_subject.gather(prepared, x)
    unchanged = layer_subject.gather(layer_subject.prepare(catalogue.find(LAYER), WORKLOAD), x)
    proof = transform.TRANSFORM.applied
    assert proof is not None
    ok, text = proof(seen, unchanged)
    assert ok and text.startswith("4 modules fake-quantised (q, k, v, o)")
    assert not proof(unchanged, unchanged).ok
    assert not proof(replace(seen, forward=unchanged.forward), unchanged).ok


@installed
def test_the_transform_refuses_what_it_cannot_round() -> None:
    subject = catalogue.find(f"{LAYER}+qat:int4")
    narrow = replace(WORKLOAD, heads=1, kv_heads=1)
    assert "groups of 32, which 16 channels" in str(layer_subject.refuses(subject, narrow, "fwd", "cpu"))
    assert "not in bf16" in str(layer_subject.refuses(subject, replace(WORKLOAD, dtype="bf16"), "fwd", "cpu"))
    with pytest.raises(ValueError, match="a row of 0 has 40"):
        transform.TRANSFORM.wrap_layer(nn.Sequential(nn.Linear(40, 8)), "int4")
    for argument in (None, "int3"):
        with pytest.raises(ValueError, match="needs one of int8, int4, int2, as in qat:int4"):
            transform.TRANSFORM.wrap_layer(nn.Sequential(nn.Linear(32, 8)), argument)
