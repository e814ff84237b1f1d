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
    with_parameters,
)
from attention_impls.variants.linear.gmlp import GMLP

FORMS = ("gmlp.whole", "gmlp.tiled", "gmlp.tiled:block-3")


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_every_element_is_a_gated_mix_of_the_values_seen_and_a_bias(mask: str) -> None:
    call = drawn(GMLP, mask=mask, q_len=5)
    q, v, w, b = (x.numpy() for x in (call.q, call.v, call.parameters["w"], call.parameters["b"]))
    expected = np.zeros((2, 4, 5, 4))
    for n, h, i, e in np.ndindex(2, 4, 5, 4):
        seen = range(7) if mask == "full" else range(i + 1)
        expected[n, h, i, e] = q[n, h, i, e] * (sum(w[i, j] * v[n, h, j, e] for j in seen) + b[i])
    np.testing.assert_allclose(definition(GMLP, call).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_forms_agree_under_every_kind_of_mask(name: str) -> None:
    for mask in ("full", "causal", "dense:0.7", "padded:0.5", "packed:2+causal"):
        call = drawn(GMLP, mask=mask, kv_heads=2)
        torch.testing.assert_close(run(name, call), definition(GMLP, call))
    changes_nothing_before(name, drawn(GMLP), 4)


@pytest.mark.parametrize("name", FORMS)
def test_a_matrix_of_zeros_gives_the_queries_times_the_bias(name: str) -> None:
    call = drawn(GMLP)
    call = with_parameters(call, w=torch.zeros(7, 7).double())
    torch.testing.assert_close(run(name, call), call.q * call.parameters["b"].unsqueeze(-1))


@pytest.mark.parametrize("name", FORMS)
def test_a_query_that_sees_no_key_is_refused_by_a_sentence(name: str) -> None:
    call = drawn(GMLP, mask="causal:bottom_right", kv_len=4)
    assert "sees no key" in (implementation(name).refuses(call) or "")
