from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests.score_loops import out_by_loop, weights_by_loop, x_transformers
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run
from attention_impls.variants.scores.l2_distance import L2_DISTANCE
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("l2_distance.naive", "l2_distance.tiled", "l2_distance.tiled:block-2")


@pytest.mark.parametrize("mask", ["causal", "dense:0.5", "full"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, mask: str) -> None:
    call = drawn(L2_DISTANCE, mask=mask, kv_heads=2, q_len=5)
    weights = weights_by_loop(call, lambda h, q, k: -sum((q - k) ** 2) / 2.0)
    np.testing.assert_allclose(L2_DISTANCE.weights(call.expanded(), torch.arange(5)).numpy(), weights, atol=1e-14)
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", FORMS)
def test_it_agrees_with_x_transformers(name: str) -> None:
    call = drawn(L2_DISTANCE)
    theirs = x_transformers(l2_distance=True)(call.q, call.k, call.v)[0]
    torch.testing.assert_close(run(name, call), theirs, rtol=0, atol=1e-7)  # their distances go through a root


@pytest.mark.parametrize("name", FORMS)
def test_keys_of_one_length_give_softmax_of_twice_the_scale(name: str) -> None:
    call = drawn(L2_DISTANCE)
    call = replace(call, k=3.0 * call.k / call.k.norm(dim=-1, keepdim=True))
    torch.testing.assert_close(run(name, call), definition(SOFTMAX, replace(call, scale=2 * call.scale)))


@pytest.mark.parametrize("name", FORMS)
def test_moving_queries_and_keys_together_changes_nothing(name: str) -> None:
    call = drawn(L2_DISTANCE)
    torch.testing.assert_close(run(name, replace(call, q=call.q + 5.0, k=call.k + 5.0)), run(name, call))


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(L2_DISTANCE), 4)
