from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests.variant_steps import definition, drawn, implementation, run, softmax_loop
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("agent:agents-2.materialised", "agent:agents-2.factored")
VARIANT = implementation(FORMS[0]).variant


def test_every_element_goes_through_means_of_three_and_two_queries() -> None:
    call = drawn(VARIANT, mask="padded:0.5", q_len=5, kv_len=6)
    q, k, lengths = call.q.numpy(), call.k.numpy(), call.mask.key_lengths.tolist()
    expected = np.zeros((2, 4, 5, 6))
    for b, h, i in np.ndindex(2, 4, 5):
        seen = np.arange(6) < lengths[b]
        agents = [(q[b, h, 0] + q[b, h, 1] + q[b, h, 2]) / 3, (q[b, h, 3] + q[b, h, 4]) / 2]
        gather = [softmax_loop(np.array([a @ k[b, h, j] / 2 for j in range(6)]), seen) for a in agents]
        share = softmax_loop(np.array([q[b, h, i] @ a / 2 for a in agents]), np.ones(2, bool))
        expected[b, h, i] = share[0] * gather[0] + share[1] * gather[1]
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(5)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_forms_agree_with_grouped_heads_and_other_value_sizes(name: str) -> None:
    call = drawn(VARIANT, mask="padded:0.5", kv_heads=2, q_len=5, kv_len=9, value_dim=3)
    torch.testing.assert_close(run(name, call), definition(VARIANT, call))


@pytest.mark.parametrize("form", ["materialised", "factored"])
def test_one_agent_gives_every_query_the_mean_querys_softmax_attention(form: str) -> None:
    name = f"agent:agents-1.{form}"
    call = drawn(implementation(name).variant, mask="full")
    mean = replace(call, q=call.q.mean(2, keepdim=True), mask=call.mask.rows(0, 1))
    torch.testing.assert_close(run(name, call), definition(SOFTMAX, mean).expand(-1, -1, 7, -1))


@pytest.mark.parametrize("form", ["materialised", "factored"])
def test_every_query_an_agent_gives_two_softmax_attentions_in_a_row(form: str) -> None:
    name = f"agent:agents-64.{form}"
    call = drawn(implementation(name).variant, mask="full", kv_len=9)
    gathered = definition(SOFTMAX, call)
    among = replace(call, k=call.q, v=gathered, mask=call.mask.keys(0, 7))
    torch.testing.assert_close(run(name, call), definition(SOFTMAX, among))


@pytest.mark.parametrize("name", FORMS)
def test_there_is_no_causal_form(name: str) -> None:
    assert implementation(name).refuses(drawn(VARIANT)) == "agent is not defined under a causal mask"
