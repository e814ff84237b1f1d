from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls.tests.score_loops import out_by_loop, weights_by_loop, x_transformers
from attention_impls.tests.test_cosine import cosine
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.scores.cosine import COSINE
from attention_impls.variants.scores.qk_norm import QK_NORM

FORMS = ("qk_norm.naive", "qk_norm.tiled", "qk_norm.tiled:block-2", "qk_norm.sdpa_flash")


@pytest.mark.parametrize("mask", ["causal", "dense:0.5", "full"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, mask: str) -> None:
    call = drawn(QK_NORM, mask=mask, kv_heads=2, q_len=5)
    g = float(call.parameters["g"])
    weights = weights_by_loop(call, lambda h, q, k: g * cosine(q, k))
    np.testing.assert_allclose(QK_NORM.weights(call.expanded(), torch.arange(5)).numpy(), weights, atol=1e-13)
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", FORMS)
def test_it_agrees_with_x_transformers_given_normalised_inputs(name: str) -> None:
    call = with_parameters(drawn(QK_NORM), g=torch.tensor(10.0).double())
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (call.q, call.k))
    theirs = x_transformers(scale=10.0)(q, k, call.v)[0]
    torch.testing.assert_close(run(name, call), theirs)


@pytest.mark.parametrize("name", FORMS)
def test_it_is_cosine_attention_with_one_tau_for_all_heads(name: str) -> None:
    call = drawn(QK_NORM)
    same = with_parameters(drawn(COSINE), tau=(1 / call.parameters["g"]).expand(4))
    torch.testing.assert_close(run(name, call), definition(COSINE, same))


def test_g_is_drawn_around_the_papers_start_for_128_tokens() -> None:
    draws = [float(drawn(QK_NORM, batch=b).parameters["g"]) for b in (1, 2)]
    assert all(abs(g - math.log2(128**2 - 128)) < 4 for g in draws)


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(QK_NORM), 4)
