from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)

FORMS = ("synthesizer_dense:hidden-5.naive", "synthesizer_dense:hidden-5.tiles")
VARIANT = implementation(FORMS[0]).variant


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_every_element_is_a_softmax_of_what_two_layers_predict(mask: str) -> None:
    call = drawn(VARIANT, mask=mask, q_len=5)
    q, p = call.q.numpy(), {name: x.numpy() for name, x in call.parameters.items()}
    expected = np.zeros((2, 4, 5, 7))
    for b, h, i in np.ndindex(2, 4, 5):
        units = [max(q[b, h, i] @ p["w_1"][h, :, a] + p["b_1"][h, a], 0.0) for a in range(5)]
        logits = [sum(units[a] * p["w_2"][h, a, j] for a in range(5)) + p["b_2"][h, j] for j in range(7)]
        seen = np.array([mask == "full" or j <= i for j in range(7)])
        expected[b, h, i] = softmax_loop(np.array(logits), seen)
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(5)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_forms_agree_under_every_kind_of_mask(name: str) -> None:
    for mask in ("full", "causal", "dense:0.4", "padded:0.5"):
        call = drawn(VARIANT, mask=mask, kv_heads=2, value_dim=3)
        torch.testing.assert_close(run(name, call), definition(VARIANT, call))
    changes_nothing_before(name, drawn(VARIANT), 4)


@pytest.mark.parametrize("name", FORMS)
def test_predicting_nothing_gives_the_mean_of_the_values_seen(name: str) -> None:
    call = drawn(VARIANT)
    zeros = {key: torch.zeros_like(call.parameters[key]) for key in ("w_2", "b_2")}
    counts = torch.arange(1, 8).double().view(7, 1)
    torch.testing.assert_close(run(name, with_parameters(call, **zeros)), call.v.cumsum(2) / counts)


@pytest.mark.parametrize("name", FORMS)
def test_keys_are_not_read(name: str) -> None:
    call = drawn(VARIANT)
    other = type(call)(call.q, call.k + 1, call.v, call.mask, 1.0, call.parameters, call.axes)
    assert torch.equal(run(name, other), run(name, call))
