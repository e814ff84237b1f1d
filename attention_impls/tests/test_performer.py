from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.inputs import generator
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.linear.performer import orthogonal_features
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "performer:features-12"
VARIANT = catalogue.find(f"{NAME}.quadratic").variant


def omega(draw: int, features: int, dim: int) -> Tensor:
    return orthogonal_features(generator(f"test/{draw}/{features}"), (features, dim)).double()


def kernel(q: Tensor, k: Tensor, random: Tensor) -> float:
    """The estimate of exp(q·k): the mean over features of exp(ω·q − |q|²/2) exp(ω·k − |k|²/2)."""
    return float(((random @ q - q @ q / 2).exp() * (random @ k - k @ k / 2).exp()).mean())


def test_every_element_is_the_kernel_estimate_over_its_row_sum() -> None:
    call = drawn(VARIANT)
    q, k, random = call.q * 4**-0.25, call.k * 4**-0.25, call.parameters["omega"]
    expected = np.zeros((2, 4, 7, 7))
    for b, h, i in np.ndindex(2, 4, 7):
        row = [kernel(q[b, h, i], k[b, h, j], random) if j <= i else 0.0 for j in range(7)]
        expected[b, h, i] = np.array(row) / sum(row)
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(7)).numpy(), expected, atol=1e-13)


def test_features_of_a_block_are_orthogonal_and_as_long_as_normal_vectors() -> None:
    random = omega(0, 6, 4)
    for block in (random[:4], random[4:]):
        products = block @ block.mT
        torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-5)
    lengths = torch.cat([omega(i, 8, 4).square().sum(-1) for i in range(200)])
    assert abs(float(lengths.mean()) - 4) < 4 * math.sqrt(2 * 4 / len(lengths))


def test_the_kernel_estimate_is_unbiased() -> None:
    q, k = torch.tensor([0.6, -0.3, 0.2, 0.1]).double(), torch.tensor([0.5, 0.4, -0.7, 0.2]).double()
    draws = np.array([kernel(q, k, omega(i, 64, 4)) for i in range(200)])
    error = draws.std(ddof=1) / math.sqrt(len(draws))
    assert error < 0.02
    assert abs(draws.mean() - math.exp(q @ k)) < 4 * error


def distance_from_softmax(features: int) -> float:
    """Relative distance of the output, the mean over 20 draws, on queries and keys of deviation one half."""
    call = drawn(VARIANT, mask="full", q_len=16, kv_len=16)
    call = replace(call, q=call.q / 2, k=call.k / 2)
    right = definition(SOFTMAX, call)
    draws = [definition(VARIANT, with_parameters(call, omega=omega(i, features, 4))) for i in range(20)]
    return float(np.mean([(out - right).norm() / right.norm() for out in draws]))


def test_more_features_come_closer_to_softmax_as_one_over_their_root() -> None:
    few, some, many = (distance_from_softmax(n) for n in (16, 256, 4096))
    assert many < some < few
    assert 2.5 < few / some < 6.5 and 2.5 < some / many < 6.5  # 4 = √16 in the limit


@pytest.mark.parametrize("form", ["quadratic", "chunked", "chunked:chunk-3"])
def test_causal_forms_agree(form: str) -> None:
    call = drawn(VARIANT, q_len=11, kv_len=11, kv_heads=2)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call))


@pytest.mark.parametrize("form", ["quadratic", "parallel"])
def test_forms_that_see_all_keys_agree(form: str) -> None:
    call = drawn(VARIANT, mask="padded:0.4", q_len=5, kv_len=11)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call))


@pytest.mark.parametrize("form", ["quadratic", "chunked:chunk-3"])
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"{NAME}.{form}", drawn(VARIANT), 4)


def long_key(call: Call) -> Call:
    """The last key along a feature and as long as it, where its exponent is largest."""
    k = call.k.clone()
    k[:, :, -1] = call.parameters["omega"].float()[0] * 4**0.25
    return replace(call, k=k)


@pytest.mark.parametrize("form", ["quadratic", "chunked:chunk-3"])
def test_a_key_of_extreme_exponent_in_the_future_moves_no_row_by_a_bit(form: str) -> None:
    call = drawn(VARIANT).map(Tensor.float)
    before, after = run(f"{NAME}.{form}", call), run(f"{NAME}.{form}", long_key(call))
    assert torch.equal(before[:, :, :-1], after[:, :, :-1])


def test_large_heads_neither_overflow_nor_underflow_float32() -> None:
    call = drawn(VARIANT, head_dim=512, q_len=40, kv_len=40)
    out = run(f"{NAME}.quadratic", call.map(Tensor.float))
    torch.testing.assert_close(out.double(), definition(VARIANT, call), rtol=1e-4, atol=1e-4)
