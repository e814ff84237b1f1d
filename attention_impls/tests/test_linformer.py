from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.variant_steps import definition, drawn, implementation, run, softmax_loop, with_parameters
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("naive", "sdpa_math", "sdpa_flash")
NAME = "linformer:rank-3"
VARIANT = catalogue.find(f"{NAME}.naive").variant


def test_every_element_is_softmax_over_projected_keys_times_f() -> None:
    call = drawn(VARIANT, mask="full", q_len=4, kv_len=6)
    q, k, e, f = (t.numpy() for t in (call.q, call.k, call.parameters["e"], call.parameters["f"]))
    expected = np.zeros((2, 4, 4, 6))
    for b, h, i in np.ndindex(2, 4, 4):
        keys = [sum(e[p, j] * k[b, h, j] for j in range(6)) for p in range(3)]
        row = softmax_loop(np.array([sum(q[b, h, i] * key) / 2.0 for key in keys]), np.ones(3, bool))
        expected[b, h, i] = [sum(row[p] * f[p, j] for p in range(3)) for j in range(6)]
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(4)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_identity_projections_of_full_rank_give_softmax(form: str) -> None:
    name = f"linformer:rank-7.{form}"
    call = drawn(implementation(name).variant, mask="full")
    whole = with_parameters(call, e=torch.eye(7).double(), f=torch.eye(7).double())
    torch.testing.assert_close(run(name, whole), definition(SOFTMAX, call))


@pytest.mark.parametrize("form", FORMS)
def test_grouped_heads_and_fewer_queries_than_keys(form: str) -> None:
    call = drawn(VARIANT, mask="full", kv_heads=2, q_len=2)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call))


@pytest.mark.parametrize("mask", ["causal", "padded:0.5", "dense:0.5"])
@pytest.mark.parametrize("form", FORMS)
def test_every_mask_is_refused_by_a_sentence(form: str, mask: str) -> None:
    reason = implementation(f"{NAME}.{form}").refuses(drawn(VARIANT, mask=mask))
    assert reason == "linformer has no masked or causal form: each of its projected keys mixes all positions"


def test_the_projections_are_bound_to_the_number_of_keys() -> None:
    call = drawn(VARIANT, mask="full", q_len=4, kv_len=6)
    assert call.parameters["e"].shape == (3, 6)
    assert call.keys(0, 2).parameters["f"].shape == (3, 2)
