from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests.fla_by_path import naive
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run
from attention_impls.variants.linear.based import BASED, pairs
from attention_impls.variants.scores.softmax import SOFTMAX

CAUSAL = ("based.quadratic", "based.chunked", "based.chunked:chunk-3")


def test_every_element_is_the_polynomial_over_its_row_sum() -> None:
    call = drawn(BASED)
    q, k = call.q.numpy(), call.k.numpy()
    expected = np.zeros((2, 4, 7, 7))
    for b, h, i in np.ndindex(2, 4, 7):
        logits = [sum(q[b, h, i] * k[b, h, j]) / 2 for j in range(7)]
        row = np.array([1 + s + s * s / 2 if j <= i else 0.0 for j, s in enumerate(logits)])
        expected[b, h, i] = row / sum(row)
    np.testing.assert_allclose(BASED.weights(call, torch.arange(7)).numpy(), expected, atol=1e-14)


def test_products_of_pairs_are_squares_of_products() -> None:
    call = drawn(BASED, head_dim=5)
    assert pairs(call.q).shape[-1] == 15
    torch.testing.assert_close(pairs(call.q) @ pairs(call.k).mT, (call.q @ call.k.mT) ** 2)


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_forms_agree_and_later_tokens_change_nothing_before(name: str) -> None:
    call = drawn(BASED, q_len=11, kv_len=11, kv_heads=2)
    torch.testing.assert_close(run(name, call), definition(BASED, call))
    changes_nothing_before(name, drawn(BASED), 4)


@pytest.mark.parametrize("name", ["based.quadratic", "based.parallel"])
def test_forms_that_see_all_keys_agree(name: str) -> None:
    call = drawn(BASED, mask="padded:0.4", q_len=5, kv_len=11)
    torch.testing.assert_close(run(name, call), definition(BASED, call))


@pytest.mark.parametrize("name", CAUSAL)
def test_against_the_naive_form_of_flash_linear_attention(name: str) -> None:
    """It adds 1e-6 to sums of at least 1/2."""
    call = drawn(BASED, q_len=11, kv_len=11)
    expected = naive("based").naive_parallel_based(call.q.clone(), call.k, call.v)
    torch.testing.assert_close(run(name, call), expected, rtol=1e-5, atol=1e-5)


def test_small_logits_come_to_softmax_with_their_third_power() -> None:
    call = drawn(BASED)
    errors = [
        float((definition(BASED, part) - definition(SOFTMAX, part)).norm())
        for part in (replace(call, scale=0.02), replace(call, scale=0.01))
    ]
    assert 7 < errors[0] / errors[1] < 9  # 8 = 2³ in the limit
