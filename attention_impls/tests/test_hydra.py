from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import oracle
from attention_impls.call import Call
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, implementation, run
from attention_impls.variants.linear.hydra import HYDRA


def right(call: Call) -> torch.Tensor:
    return oracle.answer(HYDRA, call, torch.arange(call.q.shape[2])).out


def unit(x: np.ndarray) -> np.ndarray:
    return x / math.sqrt(sum(x * x))


@pytest.mark.parametrize("mask", ["full", "causal", "dense:0.5"])
def test_every_element_is_a_sum_over_keys_of_three_numbers(mask: str) -> None:
    call = drawn(HYDRA, mask=mask, q_len=5, kv_len=5)
    visible = call.mask.visible()
    seen = np.ones((2, 4, 5, 5), bool) if visible is None else visible.expand(2, 4, 5, 5).numpy()
    q, k, v = (x.numpy() for x in (call.q, call.k, call.v))
    expected = np.zeros((2, 4, 5, 4))
    for b, h, i, d in np.ndindex(2, 4, 5, 4):
        own = unit(q[b, h, i])[d]
        expected[b, h, i, d] = sum(own * unit(k[b, h, j])[d] * v[b, h, j, d] for j in range(5) if seen[b, h, i, j])
    np.testing.assert_allclose(right(call).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", ["hydra.masked", "hydra.running"])
def test_causal_forms_agree_from_any_start(name: str) -> None:
    for axes in ({"q_len": 11, "kv_len": 11}, {"mask": "causal:bottom_right", "kv_len": 4}, {"kv_len": 3}):
        call = drawn(HYDRA, kv_heads=2, **axes)
        torch.testing.assert_close(run(name, call), right(call))
    changes_nothing_before(name, drawn(HYDRA), 4)


@pytest.mark.parametrize("name", ["hydra.masked", "hydra.summed"])
def test_forms_that_see_all_keys_agree(name: str) -> None:
    call = drawn(HYDRA, mask="padded:0.4", q_len=5, kv_len=11, kv_heads=2)
    torch.testing.assert_close(run(name, call), right(call))


@pytest.mark.parametrize("name", ["hydra.masked", "hydra.summed"])
def test_results_over_disjoint_keys_add_up(name: str) -> None:
    whole = drawn(HYDRA, mask="full")
    torch.testing.assert_close(run(name, whole.keys(0, 3)) + run(name, whole.keys(3, 7)), run(name, whole))


def test_with_heads_of_one_feature_it_is_attention_with_weights_of_signs() -> None:
    """|q| is then its only number: every weight is sign(q_i) sign(k_j)."""
    call = drawn(HYDRA, mask="full", head_dim=1, value_dim=1)
    expected = call.q.sign() @ call.k.sign().mT @ call.v
    torch.testing.assert_close(run("hydra.summed", call), expected)


def test_other_value_sizes_are_refused_by_a_sentence() -> None:
    assert "must be equal" in (implementation("hydra.summed").refuses(drawn(HYDRA, mask="full", value_dim=3)) or "")
