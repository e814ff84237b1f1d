from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls.call import merge_by_lse
from attention_impls.tests.score_loops import out_by_loop, weights_by_loop
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    with_parameters,
)
from attention_impls.variants.scores.output_gate import OUTPUT_GATE
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("output_gate.naive", "output_gate.sdpa_flash", "output_gate.tiles", "output_gate.tiles:block-2")


@pytest.mark.parametrize("mask", ["causal", "dense:0.5", "full"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, mask: str) -> None:
    call = drawn(OUTPUT_GATE, mask=mask, kv_heads=2, q_len=5)
    out = out_by_loop(call, weights_by_loop(call, lambda h, q, k: sum(q * k) / 2.0)).numpy()
    gate, expected = call.parameters["gate"].numpy(), np.zeros_like(out)
    for at in np.ndindex(*out.shape):
        expected[at] = gate[at] * out[at]
    np.testing.assert_allclose(definition(OUTPUT_GATE, call).numpy(), expected, atol=1e-14)
    np.testing.assert_allclose(run(name, call).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_an_open_gate_is_softmax_and_a_closed_one_gives_zeros(name: str) -> None:
    call = drawn(OUTPUT_GATE)
    gate = call.parameters["gate"]
    torch.testing.assert_close(run(name, with_parameters(call, gate=torch.ones_like(gate))), definition(SOFTMAX, call))
    assert not run(name, with_parameters(call, gate=torch.zeros_like(gate))).any()


@pytest.mark.parametrize("name", FORMS)
def test_two_halves_of_the_keys_join_to_the_whole(name: str) -> None:
    whole, made = drawn(OUTPUT_GATE, mask="full"), implementation(name)
    parts = [made.prepare(part, True)(part) for part in (whole.keys(0, 3), whole.keys(3, 7))]
    joined, _ = merge_by_lse([p.out for p in parts], [p.lse for p in parts])
    torch.testing.assert_close(joined, run(name, whole))


@pytest.mark.parametrize("name", FORMS)
def test_the_gate_is_differentiable(name: str) -> None:
    """d out / d gate = softmax(…) v."""
    call = drawn(OUTPUT_GATE)
    gate = call.parameters["gate"].clone().requires_grad_()
    (found,) = torch.autograd.grad(run(name, with_parameters(call, gate=gate)).sum(), gate)
    torch.testing.assert_close(found, definition(SOFTMAX, call))


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(OUTPUT_GATE), 4)
