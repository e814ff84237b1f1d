from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests.variant_steps import definition, drawn, implementation, run, softmax_loop, with_parameters
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("luna:packed-3.materialised", "luna:packed-3.factored")
VARIANT = implementation(FORMS[0]).variant


def test_every_element_unpacks_what_was_packed() -> None:
    call = drawn(VARIANT, mask="padded:0.5", q_len=3, kv_len=6)
    q, k, p, lengths = call.q.numpy(), call.k.numpy(), call.parameters["p"].numpy(), call.mask.key_lengths.tolist()
    expected = np.zeros((2, 4, 3, 6))
    for b, h, i in np.ndindex(2, 4, 3):
        seen = np.arange(6) < lengths[b]
        pack = [softmax_loop(np.array([p[h, s] @ k[b, h, j] / 2 for j in range(6)]), seen) for s in range(3)]
        keys = [sum(pack[s][j] * k[b, h, j] for j in range(6)) for s in range(3)]
        unpack = softmax_loop(np.array([q[b, h, i] @ key / 2 for key in keys]), np.ones(3, bool))
        expected[b, h, i] = sum(unpack[s] * pack[s] for s in range(3))
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(3)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_forms_agree_with_grouped_heads_and_other_value_sizes(name: str) -> None:
    call = drawn(VARIANT, mask="padded:0.5", kv_heads=2, q_len=5, kv_len=9, value_dim=3)
    torch.testing.assert_close(run(name, call), definition(VARIANT, call))


@pytest.mark.parametrize("form", ["materialised", "factored"])
def test_one_packed_token_gives_every_query_softmax_attention_of_it(form: str) -> None:
    name = f"luna:packed-1.{form}"
    call = drawn(implementation(name).variant, mask="full")
    alone = replace(call, q=call.parameters["p"].expand(2, -1, -1, -1), mask=call.mask.rows(0, 1))
    torch.testing.assert_close(run(name, call), definition(SOFTMAX, alone).expand(-1, -1, 7, -1))


@pytest.mark.parametrize("form", ["materialised", "factored"])
def test_packing_that_copies_single_keys_gives_softmax(form: str) -> None:
    """Keys along the axes and packed queries a hundred times as long: each packs one key."""
    name = f"luna:packed-4.{form}"
    call = drawn(implementation(name).variant, mask="full", kv_len=4)
    axes = torch.eye(4).double()
    sharp = with_parameters(replace(call, k=axes.expand(2, 4, 4, 4)), p=200 * axes.expand(4, 4, 4))
    torch.testing.assert_close(run(name, sharp), definition(SOFTMAX, sharp))


@pytest.mark.parametrize("name", FORMS)
def test_there_is_no_causal_form(name: str) -> None:
    assert implementation(name).refuses(drawn(VARIANT)) == "luna is not defined under a causal mask"
