from __future__ import annotations

import math

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

NAME = "luna_causal:packed-3"
VARIANT = implementation(f"{NAME}.quadratic").variant
FORMS = ("quadratic", "chunked", "chunked:chunk-1", "chunked:chunk-3")


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_every_element_is_a_product_of_packing_and_unpacking_over_how_many_are_seen(mask: str) -> None:
    call = drawn(VARIANT, mask=mask, q_len=5, kv_len=5)
    q, k, p = call.q.numpy(), call.k.numpy(), call.parameters["p"].numpy()
    expected = np.zeros((2, 4, 5, 5))
    for b, h, i in np.ndindex(2, 4, 5):
        n = i + 1 if mask == "causal" else 5
        phi = [[math.log1p(math.exp(p[h, s] @ k[b, h, j] / 2)) for s in range(3)] for j in range(n)]
        logits = [sum(q[b, h, i] @ k[b, h, j] / 2 * phi[j][s] for j in range(n)) / n for s in range(3)]
        u = softmax_loop(np.array(logits), np.ones(3, bool))
        expected[b, h, i, :n] = [sum(u[s] * phi[j][s] for s in range(3)) / n for j in range(n)]
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(5)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_causal_forms_agree_from_any_start(form: str) -> None:
    for axes in (
        {"q_len": 11, "kv_len": 11, "mask": "causal+padded:0.4"},
        {"q_len": 4, "kv_len": 11, "mask": "causal:bottom_right"},
        {"kv_len": 4, "mask": "causal:bottom_right"},
        {"kv_len": 3, "value_dim": 5},
    ):
        call = drawn(VARIANT, kv_heads=2, **axes)
        torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call))


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"{NAME}.{form}", drawn(VARIANT), 4)


@pytest.mark.parametrize("form", FORMS)
def test_one_packed_token_of_zero_gives_means_of_the_values_seen_times_log_two(form: str) -> None:
    """softplus(0) = log 2, and a softmax over one is 1."""
    name = f"luna_causal:packed-1.{form}"
    call = drawn(implementation(name).variant)
    call = with_parameters(call, p=torch.zeros_like(call.parameters["p"]))
    counts = torch.arange(1, 8).double().view(7, 1)
    torch.testing.assert_close(run(name, call), math.log(2) * call.v.cumsum(2) / counts)


def test_what_the_chunked_form_holds_grows_with_the_length_and_not_with_its_square() -> None:
    def held(n: int) -> int:
        call, sizes = drawn(VARIANT, q_len=n, kv_len=n).map(lambda t: t.requires_grad_()), []
        made = implementation(f"{NAME}.chunked:chunk-16").prepare(call, False)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            made(call)
        return sum(sizes)

    assert held(256) / held(128) == pytest.approx(2.0, rel=0.1)
