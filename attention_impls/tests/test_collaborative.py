from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)
from attention_impls.variants.heads.collaborative import COLLABORATIVE
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("collaborative.naive", "collaborative.sdpa_math", "collaborative.tiles")


def test_every_element_mixes_the_products_of_all_heads_dimensions() -> None:
    call = drawn(COLLABORATIVE, heads=3, kv_heads=3, q_len=5, kv_len=5, head_dim=2)
    q, k, mix = call.q.numpy(), call.k.numpy(), call.parameters["mix"].numpy()
    expected = np.zeros((2, 3, 5, 5))
    for b, h, i in np.ndindex(2, 3, 5):
        logits = [
            sum(mix[h, g, d] * q[b, g, i, d] * k[b, g, j, d] for g in range(3) for d in range(2)) / 2**0.5
            for j in range(5)
        ]
        expected[b, h, i] = softmax_loop(np.array(logits), np.arange(5) <= i)
    np.testing.assert_allclose(COLLABORATIVE.weights(call, torch.arange(5)).numpy(), expected, atol=1e-14)
    for name in FORMS:
        np.testing.assert_allclose(run(name, call).numpy(), expected @ call.v.numpy(), atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("mask", ["full", "causal", "padded:0.5", "dense:0.5"])
def test_heads_that_share_nothing_are_softmax(name: str, mask: str) -> None:
    call = drawn(COLLABORATIVE, kv_heads=2, mask=mask, value_dim=3)
    own = torch.eye(4, dtype=torch.float64).unsqueeze(-1).expand(4, 4, 4)
    torch.testing.assert_close(run(name, with_parameters(call, mix=own)), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", FORMS)
def test_heads_with_one_mix_have_one_map(name: str) -> None:
    call = drawn(COLLABORATIVE, kv_heads=1)  # one value head: equal maps give equal outputs
    out = run(name, with_parameters(call, mix=call.parameters["mix"][:1].expand(4, -1, -1)))
    torch.testing.assert_close(out, out[:, :1].expand_as(out))
    assert not torch.allclose(run(name, call)[:, 0], run(name, call)[:, 1])


@pytest.mark.parametrize("name", FORMS)
def test_dimensions_without_mix_are_not_read(name: str) -> None:
    """The paper's shared size below H·D: products in a dimension whose mix is zero in every head change nothing."""
    call = drawn(COLLABORATIVE)
    mix = call.parameters["mix"].clone()
    mix[:, :, 2:] = 0.0
    call = with_parameters(call, mix=mix)
    before = run(name, call)
    call.q[..., 2:] += 5.0
    torch.testing.assert_close(run(name, call), before)


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(COLLABORATIVE), 4)


def test_heads_are_not_taken_apart() -> None:
    assert "couples heads" in catalogue.find("collaborative.naive+head_chunks:2").inner.refuses(drawn(COLLABORATIVE))
    assert implementation("collaborative.tiles").variant is COLLABORATIVE
