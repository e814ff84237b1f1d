from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls.tests.fla_by_path import naive
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.linear.rebased import REBASED

CAUSAL = ("rebased.quadratic", "rebased.chunked", "rebased.chunked:chunk-3")


def normed(x: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((y - mean) ** 2 for y in x) / len(x) + 1e-5)
    return np.array([gain[d] * (x[d] - mean) / deviation + shift[d] for d in range(len(x))])


def test_every_element_is_a_squared_product_of_normed_vectors_over_its_row_sum() -> None:
    call = drawn(REBASED)
    q, k, p = call.q.numpy(), call.k.numpy(), {name: x.numpy() for name, x in call.parameters.items()}
    expected = np.zeros((2, 4, 7, 7))
    for b, h, i in np.ndindex(2, 4, 7):
        own = normed(q[b, h, i], p["gamma_q"], p["beta_q"])
        row = np.zeros(7)
        for j in range(i + 1):
            row[j] = sum(own * normed(k[b, h, j], p["gamma_k"], p["beta_k"])) ** 2
        expected[b, h, i] = row / sum(row)
    np.testing.assert_allclose(REBASED.weights(call, torch.arange(7)).numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_forms_agree_and_later_tokens_change_nothing_before(name: str) -> None:
    call = drawn(REBASED, q_len=11, kv_len=11, kv_heads=2)
    torch.testing.assert_close(run(name, call), definition(REBASED, call))
    changes_nothing_before(name, drawn(REBASED), 4)


@pytest.mark.parametrize("name", ["rebased.quadratic", "rebased.parallel"])
def test_forms_that_see_all_keys_agree(name: str) -> None:
    call = drawn(REBASED, mask="padded:0.4", q_len=5, kv_len=11)
    torch.testing.assert_close(run(name, call), definition(REBASED, call))


@pytest.mark.parametrize("name", CAUSAL)
def test_against_the_naive_form_of_flash_linear_attention(name: str) -> None:
    """It is given normed vectors, and adds 1e-6 to each sum."""
    call = drawn(REBASED, head_dim=8)
    p = call.parameters
    q = torch.nn.functional.layer_norm(call.q, (8,), p["gamma_q"], p["beta_q"])
    k = torch.nn.functional.layer_norm(call.k, (8,), p["gamma_k"], p["beta_k"])
    expected = naive("rebased").naive_parallel_rebased(q, k, call.v, scale=1e3)  # far above what it adds
    torch.testing.assert_close(run(name, call), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CAUSAL)
def test_queries_of_zero_see_nothing_and_give_zeros(name: str) -> None:
    zero = torch.zeros(4).double()
    call = with_parameters(drawn(REBASED), gamma_q=zero, beta_q=zero)
    assert not run(name, call).any()
