from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls.tests.variant_steps import definition, drawn, implementation, run, softmax_loop
from attention_impls.variants.linear.efficient import EFFICIENT

FORMS = ("efficient.materialised", "efficient.factored")


def test_every_element_is_a_softmax_of_features_times_softmaxes_of_positions() -> None:
    call = drawn(EFFICIENT, mask="padded:0.5", q_len=3, kv_len=6)
    q, k, lengths = call.q.numpy(), call.k.numpy(), call.mask.key_lengths.tolist()
    expected = np.zeros((2, 4, 3, 6))
    for b, h, i in np.ndindex(2, 4, 3):
        share = softmax_loop(q[b, h, i], np.ones(4, bool))
        maps = [softmax_loop(k[b, h, :, d], np.arange(6) < lengths[b]) for d in range(4)]
        expected[b, h, i] = [sum(share[d] * maps[d][j] for d in range(4)) for j in range(6)]
    np.testing.assert_allclose(EFFICIENT.weights(call, torch.arange(3)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_against_linear_attention_transformer_which_divides_by_the_root_of_d(name: str) -> None:
    library = pytest.importorskip("linear_attention_transformer.linear_attention_transformer")
    call = drawn(EFFICIENT, mask="padded:0.4", q_len=5, kv_len=9)
    kept = torch.arange(9) < call.mask.key_lengths[:, None]
    expected = library.linear_attn(call.q, call.k.clone(), call.v.clone(), kept) * math.sqrt(4)
    torch.testing.assert_close(run(name, call), expected)


@pytest.mark.parametrize("name", FORMS)
def test_rows_sum_to_one_and_grouped_heads_read_their_groups_keys(name: str) -> None:
    call = drawn(EFFICIENT, mask="full", kv_heads=2, value_dim=3)
    torch.testing.assert_close(run(name, call), definition(EFFICIENT, call))
    ones = EFFICIENT.weights(call.expanded(), torch.arange(7)).sum(-1)
    torch.testing.assert_close(ones, torch.ones_like(ones))


@pytest.mark.parametrize("name", FORMS)
def test_with_one_key_every_query_gets_its_value(name: str) -> None:
    call = drawn(EFFICIENT, mask="full", kv_len=1)
    torch.testing.assert_close(run(name, call), call.v.expand(-1, -1, 7, -1))


@pytest.mark.parametrize("name", FORMS)
def test_there_is_no_causal_form_and_no_scale(name: str) -> None:
    assert implementation(name).refuses(drawn(EFFICIENT)) == "efficient is not defined under a causal mask"


@pytest.mark.parametrize("form", ["factored", "materialised"])
def test_what_the_factored_form_holds_grows_with_the_length_and_not_with_its_square(form: str) -> None:
    def held(n: int) -> int:
        call, sizes = drawn(EFFICIENT, q_len=n, kv_len=n, mask="full").map(lambda t: t.requires_grad_()), []
        made = implementation(f"efficient.{form}").prepare(call, False)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            made(call)
        return sum(sizes)

    wanted = 2.0 if form == "factored" else 4.0
    assert held(512) / held(256) == pytest.approx(wanted, rel=0.15)
