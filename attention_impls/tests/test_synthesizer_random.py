from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests.variant_steps import (
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("synthesizer_random:rank-3.naive", "synthesizer_random:rank-3.tiles")
VARIANT = implementation(FORMS[0]).variant


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_every_element_is_a_softmax_of_products_of_factors(mask: str) -> None:
    call = drawn(VARIANT, mask=mask, q_len=5)
    r_1, r_2 = call.parameters["r_1"].numpy(), call.parameters["r_2"].numpy()
    expected = np.zeros((2, 4, 5, 7))
    for b, h, i in np.ndindex(2, 4, 5):
        seen = np.array([mask == "full" or j <= i for j in range(7)])
        expected[b, h, i] = softmax_loop(np.array([sum(r_1[h, i] * r_2[h, j]) for j in range(7)]), seen)
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(5)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_forms_agree_under_every_kind_of_mask(name: str) -> None:
    for mask in ("full", "causal", "dense:0.4", "padded:0.5"):
        call = drawn(VARIANT, mask=mask, kv_heads=2, value_dim=3)
        torch.testing.assert_close(run(name, call), definition(VARIANT, call))


@pytest.mark.parametrize("form", ["naive", "tiles"])
def test_factors_that_are_queries_and_keys_give_softmax_attention_of_them(form: str) -> None:
    name = f"synthesizer_random:rank-4.{form}"
    call = drawn(implementation(name).variant, batch=1)
    learned = with_parameters(call, r_1=call.q[0], r_2=call.k[0])
    torch.testing.assert_close(run(name, learned), definition(SOFTMAX, replace(call, scale=1.0)))


@pytest.mark.parametrize("name", FORMS)
def test_queries_and_keys_are_not_read(name: str) -> None:
    call = drawn(VARIANT)
    other = replace(call, q=call.q + 1, k=call.k - 1)
    assert torch.equal(run(name, other), run(name, call))


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    call = drawn(VARIANT)
    v = call.v.clone()
    v[:, :, 4:] += 3
    assert torch.equal(run(name, replace(call, v=v))[:, :, :4], run(name, call)[:, :, :4])
