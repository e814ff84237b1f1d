from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls import oracle
from attention_impls.tests.variant_steps import drawn, implementation, run, softmax_loop
from attention_impls.variants.linear.xcit import XCIT

FORMS = ("xcit.normed", "xcit.gram")


def test_every_element_mixes_features_by_the_likeness_of_their_columns() -> None:
    call = drawn(XCIT, mask="full", heads=2, kv_heads=2)
    q, k, v, t = (x.numpy() for x in (call.q, call.k, call.v, call.parameters["temperature"]))
    expected = np.zeros((2, 2, 7, 4))
    for b, h, c in np.ndindex(2, 2, 4):
        own = q[b, h, :, c] / np.sqrt(sum(q[b, h, :, c] ** 2))
        others = [k[b, h, :, d] / np.sqrt(sum(k[b, h, :, d] ** 2)) for d in range(4)]
        share = softmax_loop(np.array([t[h] * sum(own * other) for other in others]), np.ones(4, bool))
        for i in range(7):
            expected[b, h, i, c] = sum(share[d] * v[b, h, i, d] for d in range(4))
    np.testing.assert_allclose(oracle.answer(XCIT, call, torch.arange(7)).out.numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_forms_agree_with_grouped_heads(name: str) -> None:
    call = drawn(XCIT, mask="full", kv_heads=2, q_len=11, kv_len=11)
    torch.testing.assert_close(run(name, call), oracle.answer(XCIT, call, torch.arange(11)).out)


@pytest.mark.parametrize("name", FORMS)
def test_permuting_the_tokens_permutes_the_output(name: str) -> None:
    call = drawn(XCIT, mask="full")
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    moved = call.map(lambda t: t[:, :, order] if t.dim() == 4 else t)
    torch.testing.assert_close(run(name, moved), run(name, call)[:, :, order])


@pytest.mark.parametrize("name", FORMS)
def test_the_lengths_of_columns_are_not_felt(name: str) -> None:
    call = drawn(XCIT, mask="full")
    longer = type(call)(call.q * 3, call.k * torch.arange(1, 5), call.v, call.mask, 1.0, call.parameters, call.axes)
    torch.testing.assert_close(run(name, longer), run(name, call))


@pytest.mark.parametrize("name", FORMS)
def test_masks_and_other_keys_are_refused_by_a_sentence(name: str) -> None:
    made = implementation(name)
    assert made.refuses(drawn(XCIT)) == "xcit is not defined under a causal mask"
    assert "self-attention" in (made.refuses(drawn(XCIT, mask="full", kv_len=9)) or "")
