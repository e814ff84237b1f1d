"""CoPE: counts and interpolation by a loop, x-transformers' form, and what it reduces to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.score_loops import out_by_loop, seen_by_loop, x_transformers
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    run,
    softmax_loop,
    with_parameters,
)
from attention_impls.variants.scores.softmax import SOFTMAX

KERNELS = tuple(f"cope:positions-3.{kernel}" for kernel in ("naive", "tiled", "tiled:block-2"))
COPE = catalogue.find(KERNELS[0]).variant
CALLS = [{}, {"kv_heads": 2}, {"q_len": 3, "mask": "causal:bottom_right"}, {"mask": "packed:2+causal"}]


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, axes: dict) -> None:
    """Counts reach 2, the last of three positions, in the longer rows."""
    call = drawn(COPE, **axes)
    q, k, e, seen = call.q.numpy(), call.k.numpy(), call.parameters["embedding"].numpy(), seen_by_loop(call)
    weights = np.zeros(seen.shape)
    for b, h, i in np.ndindex(*q.shape[:3]):
        plain = [sum(q[b, h, i] * key) / 2.0 for key in k[b, h * k.shape[1] // 4]]
        logits = []
        for j, logit in enumerate(plain):
            gates = [1 / (1 + math.exp(-x)) for x, ok in zip(plain[j:], seen[b, h, i, j:], strict=True) if ok]
            count = min(sum(gates), 2.0)
            low, high = math.floor(count), math.ceil(count)
            between = e[low] if low == high else (high - count) * e[low] + (count - low) * e[high]
            logits.append(logit + sum(q[b, h, i] * between))
        weights[b, h, i] = softmax_loop(np.array(logits), seen[b, h, i])
    torch.testing.assert_close(definition(COPE, call), out_by_loop(call, weights))
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", KERNELS)
def test_it_agrees_with_x_transformers(name: str) -> None:
    x_transformers()  # skips where it is not there
    from x_transformers.x_transformers import CoPE

    call = drawn(COPE)
    theirs = CoPE(4, 4, 3).double()
    theirs.pos_emb.data.copy_(call.parameters["embedding"])
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    logits = (call.q @ call.k.mT / 2.0).masked_fill(hidden, -1e30)
    weights = (logits + theirs(call.q, logits)).softmax(-1).detach()
    torch.testing.assert_close(run(name, call), weights @ call.v)


@pytest.mark.parametrize("name", KERNELS)
def test_embeddings_of_zeros_or_all_the_same_are_softmax(name: str) -> None:
    call = drawn(COPE)
    for same in (torch.zeros(3, 4), torch.arange(4.0).expand(3, 4)):
        flat = with_parameters(call, embedding=same.double())
        torch.testing.assert_close(run(name, flat), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", KERNELS)
def test_queries_of_zeros_give_the_mean_of_what_they_see(name: str) -> None:
    call = drawn(COPE).map(torch.clone)
    call.q.zero_()
    expected = call.v.cumsum(2) / torch.arange(1, 8).double()[:, None]
    torch.testing.assert_close(run(name, call), expected)


@pytest.mark.parametrize("name", KERNELS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(COPE), 4)
