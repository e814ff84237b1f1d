from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.score_loops import out_by_loop, seen_by_loop
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    run,
    softmax_loop,
    with_parameters,
)
from attention_impls.variants.scores.softmax import SOFTMAX
from attention_impls.variants.scores.ssmax import SSMAX

FORMS = ("ssmax.naive", "ssmax.sdpa_flash", "ssmax.tiles", "ssmax.tiles:block-2")


@pytest.mark.parametrize("mask", ["causal", "causal:bottom_right", "dense:0.4", "full", "padded:0.4"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_a_loop_of_powers_of_n(name: str, mask: str) -> None:
    """The paper's form: weights ∝ n^(s·L)."""
    call = drawn(SSMAX, mask=mask, kv_heads=2, q_len=5)
    q, k, s, seen = call.q.numpy(), call.k.numpy(), call.parameters["s"].numpy(), seen_by_loop(call)
    weights = np.zeros(seen.shape)
    for b, h, i in np.ndindex(*q.shape[:3]):
        n = max(int(seen[b, h, i].sum()), 1)
        powers = np.array([n ** (s[h] * sum(q[b, h, i] * k[b, h // 2, j]) / 2.0) for j in range(7)])
        weights[b, h, i] = powers * seen[b, h, i] / max(sum(powers * seen[b, h, i]), 1e-300)
    np.testing.assert_allclose(SSMAX.weights(call.expanded(), torch.arange(5)).numpy(), weights, atol=1e-13)
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", FORMS)
def test_s_of_one_over_log_n_is_softmax(name: str) -> None:
    call = with_parameters(drawn(SSMAX, mask="full"), s=torch.full((4,), 1 / math.log(7)).double())
    torch.testing.assert_close(run(name, call), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", FORMS)
def test_one_row_of_a_whole_is_the_one_query_at_its_place(name: str) -> None:
    whole = drawn(SSMAX, q_len=9, kv_len=9)
    torch.testing.assert_close(run(name, whole.rows(5, 6)), run(name, whole)[:, :, 5:6])


def test_the_largest_weight_does_not_fade_with_the_number_of_keys() -> None:
    """One logit leads by 4, s = 0.5: n^2 against n keys of weight 1, so its weight rises towards 1 (softmax: falls)."""
    for n in (64, 4096):
        logits = np.zeros(n)
        logits[3] = 4.0
        expected = softmax_loop(logits * 0.5 * math.log(n), np.ones(n, bool))[3]
        call = drawn(SSMAX, q_len=1, kv_len=n, heads=1, kv_heads=1, batch=1, value_dim=1, mask="full")
        call.q.fill_(1.0), call.k.zero_(), call.v.zero_()
        call.k[:, :, 3], call.v[:, :, 3] = 2.0, 1.0  # 4 · 2 / sqrt(4)
        found = run("ssmax.naive", with_parameters(call, s=torch.tensor([0.5]).double()))
        assert found.item() == pytest.approx(expected, rel=1e-9)
        assert expected > 0.98


def test_parts_of_the_keys_are_not_joined() -> None:
    sentence = catalogue.find("ssmax.naive+key_chunks:4").inner.refuses(drawn(SSMAX))
    assert "cannot be joined" in sentence


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(SSMAX), 4)
