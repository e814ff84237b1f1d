from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import oracle
from attention_impls.tests.variant_steps import drawn, implementation, run
from attention_impls.variants.linear.fnet import FNET

FORMS = ("fnet.dft", "fnet.fft")


def test_every_element_is_a_sum_of_cosines_over_tokens_and_features() -> None:
    call = drawn(FNET, mask="full", batch=1, heads=2, kv_heads=2, q_len=5, kv_len=5)
    v, expected = call.v.numpy(), np.zeros((1, 2, 5, 4))
    for h, i, f in np.ndindex(2, 5, 4):
        expected[0, h, i, f] = sum(
            v[0, h, j, e] * math.cos(2 * math.pi * (i * j / 5 + f * e / 4)) for j in range(5) for e in range(4)
        )
    np.testing.assert_allclose(oracle.answer(FNET, call, torch.arange(5)).out.numpy(), expected, atol=1e-13)


@pytest.mark.parametrize("name", FORMS)
def test_against_numpys_fast_transform(name: str) -> None:
    call = drawn(FNET, mask="full", q_len=37, kv_len=37, value_dim=6)
    np.testing.assert_allclose(run(name, call).numpy(), np.fft.fft2(call.v.numpy()).real, atol=1e-11)


@pytest.mark.parametrize("name", FORMS)
def test_an_even_table_of_values_twice_transformed_is_itself_times_its_size(name: str) -> None:
    """Real and even along both axes together: then the transform is real, and its own inverse but for the size."""
    call = drawn(FNET, mask="full")
    even = call.v + call.v.roll((-1, -1), (2, 3)).flip(2, 3)  # entry (−j, −e) beside entry (j, e)
    once = type(call)(call.q, call.k, even, call.mask, 1.0)
    twice = type(call)(call.q, call.k, run(name, once), call.mask, 1.0)
    torch.testing.assert_close(run(name, twice), even * 28)


@pytest.mark.parametrize("name", FORMS)
def test_grouped_heads_repeat_their_groups_transform(name: str) -> None:
    call = drawn(FNET, mask="full", kv_heads=2)
    torch.testing.assert_close(run(name, call), run(name, call.expanded()))


@pytest.mark.parametrize("name", FORMS)
def test_masks_and_other_keys_are_refused_by_a_sentence(name: str) -> None:
    made = implementation(name)
    assert made.refuses(drawn(FNET)) == "fnet is not defined under a causal mask"
    assert "self-attention" in (made.refuses(drawn(FNET, mask="full", kv_len=9)) or "")
