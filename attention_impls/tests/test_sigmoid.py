from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls.tests.score_loops import out_by_loop, weights_by_loop, x_transformers
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, implementation, run, with_parameters
from attention_impls.variants.scores.sigmoid import SIGMOID

FORMS = ("sigmoid.naive", "sigmoid.tiled", "sigmoid.tiled:block-2")


def row(logits: np.ndarray, seen: np.ndarray) -> np.ndarray:
    beta = -math.log(len(logits))
    return np.array([1 / (1 + math.exp(-x - beta)) if ok else 0.0 for x, ok in zip(logits, seen, strict=True)])


@pytest.mark.parametrize("mask", ["causal", "dense:0.5", "full", "padded:0.4"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, mask: str) -> None:
    call = drawn(SIGMOID, mask=mask, kv_heads=2, q_len=5)
    weights = weights_by_loop(call, lambda h, q, k: sum(q * k) / 2.0, row)
    # β is float32
    np.testing.assert_allclose(SIGMOID.weights(call.expanded(), torch.arange(5)).numpy(), weights, atol=1e-7)
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_with_beta_zero_it_agrees_with_x_transformers(name: str) -> None:
    call = with_parameters(drawn(SIGMOID, mask="full"), beta=torch.zeros(7).double())
    torch.testing.assert_close(run(name, call), x_transformers(sigmoid=True, causal=False)(call.q, call.k, call.v)[0])


@pytest.mark.parametrize("name", FORMS)
def test_without_logits_every_key_weighs_one_in_n_plus_one(name: str) -> None:
    """σ(−log n) = 1/(n + 1)."""
    call = drawn(SIGMOID, mask="full")
    call.q.zero_()
    torch.testing.assert_close(run(name, call), (call.v.sum(2, keepdim=True) / 8).expand(call.v.shape))


@pytest.mark.parametrize("name", FORMS)
def test_parts_of_the_keys_add_up_to_the_whole(name: str) -> None:
    whole, made = drawn(SIGMOID, mask="full"), implementation(name)
    parts = [made.prepare(part, False)(part).out for part in (whole.keys(0, 3), whole.keys(3, 7))]
    torch.testing.assert_close(parts[0] + parts[1], run(name, whole))


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(SIGMOID), 4)
