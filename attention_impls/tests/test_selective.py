from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls.tests.score_loops import out_by_loop, x_transformers
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
)
from attention_impls.variants.scores.selective import SELECTIVE
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("selective.naive", "selective.chunked", "selective.chunked:block-2")


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, kv_heads: int) -> None:
    call = drawn(SELECTIVE, kv_heads=kv_heads)
    q, k = call.q.numpy(), call.k.numpy().repeat(4 // kv_heads, 1)
    weights = np.zeros((2, 4, 7, 7))
    for b, h, i in np.ndindex(2, 4, 7):
        logits = [sum(q[b, h, i] * k[b, h, j]) / 2.0 for j in range(7)]
        for j in range(1, 7):
            logits[j] -= sum(max(sum(q[b, 0, e] * k[b, 0, j]) / 2.0, 0.0) for e in range(j + 1, i))
        weights[b, h, i] = softmax_loop(np.array(logits), np.arange(7) <= i)
    found = SELECTIVE.weights(call.expanded(), torch.arange(7)).numpy()
    np.testing.assert_allclose(found, weights, atol=1e-14)
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", FORMS)
def test_it_agrees_with_x_transformers(name: str) -> None:
    """Theirs takes finite numbers off masked logits, whose relu is 0."""
    call = drawn(SELECTIVE)
    theirs = x_transformers(selective=True)(call.q, call.k, call.v)[0]
    torch.testing.assert_close(run(name, call), theirs)


@pytest.mark.parametrize("name", FORMS)
def test_a_first_head_that_agrees_with_nothing_leaves_softmax(name: str) -> None:
    call = drawn(SELECTIVE)
    call.q[:, 0].copy_(call.q[:, 0].abs())
    call.k[:, 0].copy_(-call.k[:, 0].abs())
    torch.testing.assert_close(run(name, call), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", FORMS)
def test_queries_that_begin_later_are_refused(name: str) -> None:
    assert "begin at position 0" in implementation(name).refuses(drawn(SELECTIVE).rows(3, 7))


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(SELECTIVE), 4)
