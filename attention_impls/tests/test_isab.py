from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls.tests.variant_steps import definition, drawn, implementation, run, softmax_loop, with_parameters

FORMS = ("isab:points-3.materialised", "isab:points-3.factored")
VARIANT = implementation(FORMS[0]).variant


def test_every_element_reads_points_under_their_own_key_and_what_they_gathered() -> None:
    call = drawn(VARIANT, mask="padded:0.5", q_len=3, kv_len=6)
    q, k, points = call.q.numpy(), call.k.numpy(), call.parameters["points"].numpy()
    lengths, expected = call.mask.key_lengths.tolist(), np.zeros((2, 4, 3, 6))
    for b, h, i in np.ndindex(2, 4, 3):
        seen = np.arange(6) < lengths[b]
        gather = [softmax_loop(np.array([points[h, s] @ k[b, h, j] / 2 for j in range(6)]), seen) for s in range(3)]
        keys = [points[h, s] + sum(gather[s][j] * k[b, h, j] for j in range(6)) for s in range(3)]
        share = softmax_loop(np.array([q[b, h, i] @ key / 2 for key in keys]), np.ones(3, bool))
        expected[b, h, i] = sum(share[s] * gather[s] for s in range(3))
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(3)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_forms_agree_with_grouped_heads_and_other_value_sizes(name: str) -> None:
    call = drawn(VARIANT, mask="padded:0.5", kv_heads=2, q_len=5, kv_len=9, value_dim=3)
    torch.testing.assert_close(run(name, call), definition(VARIANT, call))


@pytest.mark.parametrize("name", FORMS)
def test_points_of_zero_give_every_query_the_mean_value(name: str) -> None:
    """Then every gathering is even, all points are the same key, and queries choose among equals."""
    call = drawn(VARIANT, mask="full", kv_len=9)
    call = with_parameters(call, points=torch.zeros_like(call.parameters["points"]))
    torch.testing.assert_close(run(name, call), call.v.mean(2, keepdim=True).expand(-1, -1, 7, -1))


@pytest.mark.parametrize("name", FORMS)
def test_permuting_the_tokens_permutes_the_output(name: str) -> None:
    call = drawn(VARIANT, mask="full")
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    moved = call.map(lambda t: t[:, :, order] if t.dim() == 4 else t)
    torch.testing.assert_close(run(name, moved), run(name, call)[:, :, order])


@pytest.mark.parametrize("name", FORMS)
def test_there_is_no_causal_form(name: str) -> None:
    assert implementation(name).refuses(drawn(VARIANT)) == "isab is not defined under a causal mask"
