from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.low_rank import segment_means
from attention_impls.mask import Mask
from attention_impls.tests.variant_steps import definition, drawn, implementation, run, softmax_loop
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("materialised", "factored")


def variant(options: str):
    return implementation(f"nystrom:{options}.factored").variant


def test_every_element_is_made_of_three_softmaxes_and_the_true_inverse() -> None:
    """After enough iterations: numpy's pseudo-inverse, over landmarks of 2, 2, 1 and of 3, 2, 2 tokens by hand."""
    chosen = variant("landmarks-3:iterations-60")
    call = drawn(chosen, mask="full", q_len=5, kv_len=7)
    q, k = call.q.numpy(), call.k.numpy()
    expected, seen = np.zeros((2, 4, 5, 7)), np.ones(7, bool)
    for b, h in np.ndindex(2, 4):
        marks_q = [q[b, h, lo:hi].mean(0) for lo, hi in ((0, 2), (2, 4), (4, 5))]
        marks_k = [k[b, h, lo:hi].mean(0) for lo, hi in ((0, 3), (3, 5), (5, 7))]
        forth = np.array([softmax_loop(np.array([x @ m / 2 for m in marks_k]), seen[:3]) for x in q[b, h]])
        kernel = np.array([softmax_loop(np.array([x @ m / 2 for m in marks_k]), seen[:3]) for x in marks_q])
        back = np.array([softmax_loop(np.array([m @ y / 2 for y in k[b, h]]), seen) for m in marks_q])
        expected[b, h] = forth @ np.linalg.pinv(kernel) @ back
    np.testing.assert_allclose(chosen.weights(call, torch.arange(5)).numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_with_every_token_a_landmark_it_is_softmax(form: str) -> None:
    name = f"nystrom:landmarks-7:iterations-40.{form}"
    call = drawn(implementation(name).variant, mask="full", kv_heads=2)
    torch.testing.assert_close(run(name, call), definition(SOFTMAX, call.expanded()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_give_the_definition_with_uneven_runs(form: str) -> None:
    name = f"nystrom:landmarks-4.{form}"
    call = drawn(implementation(name).variant, mask="full", q_len=11, kv_len=9, kv_heads=2)
    torch.testing.assert_close(run(name, call), definition(implementation(name).variant, call))


def test_runs_of_tokens_are_even_and_the_longer_ones_come_first() -> None:
    x = torch.arange(7.0).view(1, 1, 7, 1)
    assert segment_means(x, 3).flatten().tolist() == [1.0, 3.5, 5.5]
    assert segment_means(x, 7).equal(x)


@pytest.mark.parametrize("form", FORMS)
def test_six_iterations_against_nystrom_attention(form: str) -> None:
    """One sequence and one head: there the library's maximum over the batch is the matrix's own."""
    library = pytest.importorskip("nystrom_attention")
    layer = library.NystromAttention(dim=4, dim_head=4, heads=1, num_landmarks=4, residual=False).double()
    x = drawn(SOFTMAX, q_len=12, kv_len=12, batch=1, heads=1, kv_heads=1).q
    with torch.no_grad():
        layer.to_out[0].weight.copy_(torch.eye(4))
        layer.to_out[0].bias.zero_()
        q, k, v = (x @ w.mT for w in layer.to_qkv.weight.chunk(3))
        expected: Tensor = layer(x[0])[None]
    found = run(f"nystrom:landmarks-4.{form}", Call(q, k, v, Mask(12, 12), 0.5))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mask", ["causal", "padded:0.5", "dense:0.5"])
def test_masks_are_refused_by_a_sentence(mask: str) -> None:
    made = implementation("nystrom.factored")
    assert "nystrom is not defined under a" in (made.refuses(drawn(made.variant, mask=mask)) or "")
