from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)

NAME = "hedgehog:features-5"
VARIANT = implementation(f"{NAME}.quadratic").variant
CAUSAL = ("quadratic", "chunked", "chunked:chunk-3")


def features(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    projected = np.array([sum(x[d] * w[d, f] for d in range(4)) for f in range(5)])
    return np.concatenate([softmax_loop(y, np.ones(5, bool)) for y in (projected, -projected)])


def test_every_element_is_a_product_of_softmax_features_over_its_row_sum() -> None:
    call = drawn(VARIANT)
    q, k, w_q, w_k = (x.numpy() for x in (call.q, call.k, call.parameters["w_q"], call.parameters["w_k"]))
    expected = np.zeros((2, 4, 7, 7))
    for b, h, i in np.ndindex(2, 4, 7):
        row = np.zeros(7)
        for j in range(i + 1):
            row[j] = sum(features(q[b, h, i], w_q[h]) * features(k[b, h, j], w_k[h]))
        expected[b, h, i] = row / sum(row)
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(7)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("form", CAUSAL)
def test_causal_forms_agree_and_later_tokens_change_nothing_before(form: str) -> None:
    call = drawn(VARIANT, q_len=11, kv_len=11, kv_heads=2)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call.expanded()))
    changes_nothing_before(f"{NAME}.{form}", drawn(VARIANT), 4)


@pytest.mark.parametrize("form", ["quadratic", "parallel"])
def test_forms_that_see_all_keys_agree(form: str) -> None:
    call = drawn(VARIANT, mask="padded:0.4", q_len=5, kv_len=11)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call))


@pytest.mark.parametrize("form", CAUSAL)
def test_a_map_of_zeros_gives_the_mean_of_the_values_seen(form: str) -> None:
    call = drawn(VARIANT)
    call = with_parameters(call, w_q=torch.zeros_like(call.parameters["w_q"]))
    counts = torch.arange(1, 8).double().view(7, 1)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), call.v.cumsum(2) / counts)


@pytest.mark.parametrize("form", CAUSAL)
def test_huge_inputs_do_not_overflow(form: str) -> None:
    call = drawn(VARIANT).map(lambda t: (1e4 * t).float())
    assert run(f"{NAME}.{form}", call).isfinite().all()
