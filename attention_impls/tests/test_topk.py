from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("dense", "gathered", "gathered:rows-3")


def test_every_element_is_softmax_over_the_k_largest_visible_logits() -> None:
    variant = catalogue.find("topk:k-3.dense").variant
    call = drawn(variant)
    q, k = call.q.numpy(), call.k.numpy()
    expected = np.zeros((2, 4, 7, 7))
    for b, h, i in np.ndindex(2, 4, 7):
        logits = [sum(q[b, h, i] * k[b, h, j]) / 2.0 for j in range(i + 1)]
        kept = sorted(range(i + 1), key=lambda j: (-logits[j], j))[:3]
        powers = {j: np.exp(logits[j]) for j in kept}
        for j, power in powers.items():
            expected[b, h, i, j] = power / sum(powers.values())
    np.testing.assert_allclose(variant.weights(call, torch.arange(7)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_it_is_the_sparse_top_k_of_x_transformers_where_nothing_ties(form: str, mask: str) -> None:
    attend = pytest.importorskip("x_transformers.attend")
    call = drawn(SOFTMAX, q_len=11, kv_len=11, mask=mask)
    theirs = attend.Attend(sparse_topk=4, causal=mask == "causal", scale=call.scale)
    torch.testing.assert_close(run(f"topk:k-4.{form}", call), theirs(call.q, call.k, call.v)[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["full", "causal", "padded:0.5", "packed:2+causal", "dense:0.5"])
def test_k_of_every_key_is_softmax(form: str, mask: str) -> None:
    call = drawn(SOFTMAX, mask=mask, kv_heads=2)
    torch.testing.assert_close(run(f"topk:k-7.{form}", call), definition(SOFTMAX, call))


@pytest.mark.parametrize("form", FORMS)
def test_one_key_gives_the_value_of_the_largest_logit_and_of_equals_the_first(form: str) -> None:
    call = drawn(SOFTMAX, mask="full", batch=1, heads=1, kv_heads=1)
    k = torch.zeros_like(call.k)
    k[:, :, [2, 5]] = call.q[:, :, :1]  # both fit query 0 best; nothing tells them apart
    assert torch.equal(run(f"topk:k-1.{form}", replace(call, k=k))[:, :, 0], call.v[:, :, 2])
    flat = replace(call, k=torch.zeros_like(k))
    torch.testing.assert_close(run(f"topk:k-3.{form}", flat)[0, 0, 4], call.v[0, 0, :3].mean(0))


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"topk:k-2.{form}", drawn(SOFTMAX), 4)


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_keeps_the_keys_that_float64_keeps(form: str) -> None:
    call = drawn(SOFTMAX, q_len=200, kv_len=200, head_dim=16, value_dim=16).map(torch.Tensor.bfloat16)
    right = definition(catalogue.find("topk:k-5.dense").variant, call.map(torch.Tensor.double))
    torch.testing.assert_close(run(f"topk:k-5.{form}", call).double(), right, rtol=0.01, atol=0.01)


def test_k_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="k must be at least 1"):
        catalogue.find("topk:k-0.dense")
