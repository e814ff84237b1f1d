from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.contract import Variant
from attention_impls.tests.score_loops import out_by_loop, weights_by_loop, x_transformers
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation, run
from attention_impls.variants.scores.softmax import SOFTMAX

TIGHT = "softcap:cap-1.5"
FORMS = ("naive", "tiled", "tiled:block-2")


def variant(name: str = TIGHT) -> Variant:
    return catalogue.find(f"{name}.naive").variant


@pytest.mark.parametrize("mask", ["causal", "dense:0.5", "full"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_agrees_with_a_loop_over_single_elements(form: str, mask: str) -> None:
    call = drawn(variant(), mask=mask, kv_heads=2, q_len=5)
    weights = weights_by_loop(call, lambda h, q, k: 1.5 * math.tanh(sum(q * k) / 2.0 / 1.5))
    np.testing.assert_allclose(variant().weights(call.expanded(), torch.arange(5)).numpy(), weights, atol=1e-14)
    torch.testing.assert_close(run(f"{TIGHT}.{form}", call), out_by_loop(call, weights))


@pytest.mark.parametrize("form", FORMS)
def test_it_agrees_with_x_transformers(form: str) -> None:
    call = drawn(variant())
    theirs = x_transformers(softclamp_logits=True, logit_softclamp_value=1.5)
    torch.testing.assert_close(run(f"{TIGHT}.{form}", call), theirs(call.q, call.k, call.v)[0])


@pytest.mark.parametrize("form", FORMS)
def test_a_cap_far_above_the_logits_is_softmax(form: str) -> None:
    call = drawn(variant())
    torch.testing.assert_close(run(f"softcap:cap-1e6.{form}", call), definition(SOFTMAX, call), rtol=0, atol=1e-9)
    assert not torch.allclose(run(f"{TIGHT}.{form}", call), definition(SOFTMAX, call), rtol=0, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_logits_without_bound_leave_every_visible_key_its_least_share(form: str) -> None:
    """Capped at 1.5, two keys weigh at least 1/(1 + e³) each; a hidden key nothing, whatever the cap."""
    call = drawn(variant(), q_len=2, kv_len=2, value_dim=2, heads=1, kv_heads=1, batch=1)
    call.q.fill_(100.0), call.k.copy_(torch.tensor([[100.0], [-100.0]]))
    call.v.copy_(torch.eye(2))
    rare = 1 / (1 + math.exp(3.0))
    expected = torch.tensor([[1.0, 0.0], [1 - rare, rare]]).double()
    torch.testing.assert_close(run(f"{TIGHT}.{form}", call)[0, 0], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"{TIGHT}.{form}", drawn(variant()), 4)


@pytest.mark.parametrize("cap", ["0", "-1", "inf", "nan"])
def test_a_cap_that_makes_no_sense_is_an_error(cap: str) -> None:
    with pytest.raises(ValueError, match="cap of softcap must be positive"):
        catalogue.find(f"softcap:cap-{cap}.naive")


def test_a_step_with_tiles_keeps_nothing_as_large_as_the_scores() -> None:
    largest = {}
    for form in ("naive", "tiled:block-4"):
        call = drawn(variant(), q_len=32, kv_len=32, batch=1).map(lambda t: t.requires_grad_())
        sizes: list[int] = []
        kernel = implementation(f"{TIGHT}.{form}")
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            kernel.prepare(call, False)(call)
        largest[form] = max(sizes)
    assert largest == {"naive": 4 * 32 * 32, "tiled:block-4": 4 * 32 * 4}
