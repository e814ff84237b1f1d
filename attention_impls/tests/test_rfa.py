from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls.inputs import generator
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)

NAME = "rfa:features-12"
VARIANT = implementation(f"{NAME}.quadratic").variant
CAUSAL = ("quadratic", "chunked", "chunked:chunk-3")


def unit(x: np.ndarray) -> np.ndarray:
    return x / math.sqrt(sum(x * x))


def test_every_element_is_a_mean_of_products_of_sines_and_cosines_over_its_row_sum() -> None:
    call = drawn(VARIANT)
    q, k, omega = call.q.numpy(), call.k.numpy(), call.parameters["omega"].numpy()
    expected = np.zeros((2, 4, 7, 7))
    for b, h, i in np.ndindex(2, 4, 7):
        row = np.zeros(7)
        for j in range(i + 1):
            x, y = omega @ unit(q[b, h, i]), omega @ unit(k[b, h, j])
            row[j] = sum(np.sin(x) * np.sin(y) + np.cos(x) * np.cos(y)) / 12
        expected[b, h, i] = row / sum(row)
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(7)).numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", CAUSAL)
def test_causal_forms_agree(form: str) -> None:
    call = drawn(VARIANT, q_len=11, kv_len=11, kv_heads=2)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call))


@pytest.mark.parametrize("form", ["quadratic", "parallel"])
def test_forms_that_see_all_keys_agree(form: str) -> None:
    call = drawn(VARIANT, mask="padded:0.4", q_len=5, kv_len=11)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call))


@pytest.mark.parametrize("form", CAUSAL)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"{NAME}.{form}", drawn(VARIANT), 4)


def distance_from_cosine_softmax(features: int) -> float:
    """Mean over 20 draws of the relative distance from softmax of unit queries and keys, scale 1."""
    call = drawn(VARIANT, mask="full", q_len=16, kv_len=16, batch=1)
    q, k = (x.numpy() for x in (call.q, call.k))
    right = np.zeros((1, 4, 16, 16))
    for h, i in np.ndindex(4, 16):
        logits = np.array([unit(q[0, h, i]) @ unit(k[0, h, j]) for j in range(16)])
        right[0, h, i] = softmax_loop(logits, np.ones(16, bool))
    far = []
    for draw in range(20):
        omega = torch.randn((features, 4), generator=generator(f"test/{draw}/{features}")).double()
        found = VARIANT.weights(with_parameters(call, omega=omega), torch.arange(16)).numpy()
        far.append(np.linalg.norm(found - right) / np.linalg.norm(right))
    return float(np.mean(far))


def test_more_features_come_closer_to_softmax_of_unit_vectors_as_one_over_their_root() -> None:
    some, many = (distance_from_cosine_softmax(n) for n in (256, 4096))
    assert 3 < some / many < 5.5  # 4 = √16 in the limit
