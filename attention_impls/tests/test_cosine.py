from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests.score_loops import out_by_loop, weights_by_loop
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.scores.cosine import COSINE
from attention_impls.variants.scores.dot import DOT

FORMS = ("cosine.naive", "cosine.tiled", "cosine.tiled:block-2", "cosine.sdpa_flash")


def cosine(q: np.ndarray, k: np.ndarray) -> float:
    return sum(q * k) / math.sqrt(sum(q * q)) / math.sqrt(sum(k * k))


@pytest.mark.parametrize("mask", ["causal", "dense:0.5", "full"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, mask: str) -> None:
    call = drawn(COSINE, mask=mask, kv_heads=2, q_len=5)
    tau = call.parameters["tau"].numpy()
    weights = weights_by_loop(call, lambda h, q, k: cosine(q, k) / max(tau[h], 0.01))
    np.testing.assert_allclose(COSINE.weights(call.expanded(), torch.arange(5)).numpy(), weights, atol=1e-13)
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", FORMS)
def test_lengths_do_not_count(name: str) -> None:
    call = drawn(COSINE)
    longer = replace(call, q=call.q * 7.0, k=call.k * torch.arange(1.0, 8.0)[:, None])
    torch.testing.assert_close(run(name, longer), run(name, call))


@pytest.mark.parametrize("name", FORMS)
def test_unit_vectors_with_tau_one_are_dot_attention(name: str) -> None:
    call = with_parameters(drawn(COSINE), tau=torch.ones(4).double())
    call = replace(call, q=call.q / call.q.norm(dim=-1, keepdim=True), k=call.k / call.k.norm(dim=-1, keepdim=True))
    torch.testing.assert_close(run(name, call), definition(DOT, call))


@pytest.mark.parametrize("name", FORMS)
def test_tau_is_never_below_a_hundredth(name: str) -> None:
    call = with_parameters(drawn(COSINE, mask="full"), tau=torch.full((4,), 0.0001).double())
    weights = weights_by_loop(call, lambda h, q, k: 100.0 * cosine(q, k))
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", FORMS)
def test_keys_of_zeros_have_cosine_zero(name: str) -> None:
    call = drawn(COSINE, mask="full")
    call.k.zero_()
    torch.testing.assert_close(run(name, call), call.v.mean(2, keepdim=True).expand(call.v.shape))
    assert run(name, call.map(torch.Tensor.half)).isfinite().all()


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(COSINE), 4)
