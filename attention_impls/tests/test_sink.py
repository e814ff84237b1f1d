from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls.tests.score_loops import out_by_loop, seen_by_loop, x_transformers
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.scores.sink import SINK
from attention_impls.variants.scores.softmax import SOFTMAX

DIFFERENTIABLE = ("sink.naive", "sink.tiled", "sink.tiled:block-2")
FORMS = (*DIFFERENTIABLE, "sink.sdpa_flash")


@pytest.mark.parametrize("mask", ["causal", "dense:0.3", "full"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, mask: str) -> None:
    call = drawn(SINK, mask=mask, kv_heads=2, q_len=5)
    q, k, z, seen = call.q.numpy(), call.k.numpy(), call.parameters["sink"].numpy(), seen_by_loop(call)
    weights = np.zeros(seen.shape)
    for b, h, i in np.ndindex(*q.shape[:3]):
        powers = [math.exp(sum(q[b, h, i] * k[b, h // 2, j]) / 2.0) * seen[b, h, i, j] for j in range(7)]
        weights[b, h, i] = [p / (math.exp(z[h]) + sum(powers)) for p in powers]
    np.testing.assert_allclose(SINK.weights(call.expanded(), torch.arange(5)).numpy(), weights, atol=1e-14)
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", FORMS)
def test_it_agrees_with_x_transformers(name: str) -> None:
    call = drawn(SINK)
    theirs = x_transformers(heads=4, head_learned_sink=True)
    theirs.head_attn_sink.data.copy_(call.parameters["sink"])
    torch.testing.assert_close(run(name, call), theirs(call.q, call.k, call.v)[0].detach())


@pytest.mark.parametrize("name", FORMS)
def test_a_sink_of_zero_is_x_transformers_added_zero_key(name: str) -> None:
    call = with_parameters(drawn(SINK), sink=torch.zeros(4).double())
    theirs = x_transformers(add_zero_kv=True)(call.q, call.k, call.v)[0]
    torch.testing.assert_close(run(name, call), theirs)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("z", [-1e4, -math.inf])
def test_a_sink_at_minus_infinity_is_softmax(name: str, z: float) -> None:
    call = with_parameters(drawn(SINK), sink=torch.full((4,), z).double())
    torch.testing.assert_close(run(name, call), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", FORMS)
def test_a_sink_far_above_the_logits_takes_everything(name: str) -> None:
    call = with_parameters(drawn(SINK), sink=torch.full((4,), 1e4).double())
    assert not run(name, call).any()


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(SINK), 4)
