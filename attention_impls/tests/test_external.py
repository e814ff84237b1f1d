from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import oracle
from attention_impls.tests.variant_steps import drawn, implementation, run

FORMS = ("external:units-3.naive", "external:units-3.streamed", "external:units-3.streamed:block-2")
VARIANT = implementation(FORMS[0]).variant


def test_every_element_is_normalised_over_queries_then_over_units() -> None:
    call = drawn(VARIANT, mask="full", q_len=5)
    q, m_k, m_v = (x.numpy() for x in (call.q, call.parameters["m_k"], call.parameters["m_v"]))
    expected = np.zeros((2, 4, 5, 4))
    for b, h in np.ndindex(2, 4):
        powers = np.array([[math.exp(q[b, h, i] @ m_k[s]) for s in range(3)] for i in range(5)])
        shares = [[powers[i, s] / sum(powers[:, s]) for s in range(3)] for i in range(5)]
        expected[b, h] = [sum(share[s] * m_v[s] for s in range(3)) / sum(share) for share in shares]
    np.testing.assert_allclose(oracle.answer(VARIANT, call, torch.arange(5)).out.numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_forms_agree(name: str) -> None:
    call = drawn(VARIANT, mask="full", q_len=11, kv_len=5, kv_heads=2, value_dim=3)
    torch.testing.assert_close(run(name, call), oracle.answer(VARIANT, call, torch.arange(11)).out)


@pytest.mark.parametrize("name", FORMS)
def test_keys_and_values_of_the_sequence_are_not_read(name: str) -> None:
    call = drawn(VARIANT, mask="full")
    other = type(call)(call.q, call.v, call.k, call.mask, 1.0, call.parameters, call.axes)
    assert torch.equal(run(name, other), run(name, call))


@pytest.mark.parametrize("name", FORMS)
def test_equal_queries_weigh_every_unit_alike(name: str) -> None:
    """Each unit's share is then 1/I in every row, and the answer the mean of the memory."""
    call = drawn(VARIANT, mask="full")
    same = type(call)(
        call.q[:, :, :1].expand(-1, -1, 7, -1), call.k, call.v, call.mask, 1.0, call.parameters, call.axes
    )
    torch.testing.assert_close(run(name, same), call.parameters["m_v"].mean(0).expand(2, 4, 7, 4))


@pytest.mark.parametrize("name", FORMS)
def test_masks_are_refused_by_a_sentence(name: str) -> None:
    assert implementation(name).refuses(drawn(VARIANT)) == "external is not defined under a causal mask"
