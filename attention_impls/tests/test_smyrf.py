from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.tests.variant_steps import definition, drawn, implementation, run
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("dense", "clustered")
SMALL = "smyrf:rounds-2:clusters-3."


def mapped(q: np.ndarray, k: np.ndarray, length: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """F of every query and G of every key of one head; keys from `length` on do not count in the largest."""
    both = max(sum(x**2) for x in q) + max(sum(x**2) for x in k[:length])
    of_q = [np.array([*x, 0.0, math.sqrt(both - sum(x**2))]) for x in q]
    return of_q, [np.array([*x, math.sqrt(both - sum(x**2)), 0.0]) for x in k[:length]]


def loop(call: Call, clusters: int) -> np.ndarray:
    q, k = call.q.numpy(), call.expanded().k.numpy()
    batch, heads, tokens, dim = q.shape
    size = math.ceil(tokens / clusters)
    visible = call.mask.visible()
    seen = (
        np.ones((batch, heads, tokens, tokens), bool)
        if visible is None
        else visible.expand(batch, heads, -1, -1).numpy()
    )
    lengths = [tokens] * batch if call.mask.key_lengths is None else call.mask.key_lengths.tolist()
    a = np.zeros((batch, heads, tokens, tokens))
    for b, h in np.ndindex(batch, heads):
        of_q, of_k = mapped(q[b, h], k[b, h], lengths[b])
        for line in call.parameters["lines"].numpy():
            mine, theirs = ([np.float32(sum(line * x)) for x in xs] for xs in (of_q, of_k))
            theirs += [np.float32(np.inf)] * (tokens - lengths[b])
            orders = [sorted(range(tokens), key=lambda t, at=at: (at[t], t)) for at in (mine, theirs)]
            for lo in range(0, tokens, size):
                for i in orders[0][lo : lo + size]:
                    for j in orders[1][lo : lo + size]:
                        a[b, h, i, j] += seen[b, h, i, j] * math.exp(sum(q[b, h, i] * k[b, h, j]) / math.sqrt(dim))
    sums = a.sum(-1, keepdims=True)
    return a / np.where(sums == 0, 1.0, sums)


@pytest.mark.parametrize("mask", ["full", "causal", "padded:0.5", "packed:2+causal", "dense:0.5"])
def test_every_element_is_softmax_over_what_met_in_any_round(mask: str) -> None:
    variant = catalogue.find(SMALL + "dense").variant
    call = drawn(variant, mask=mask, q_len=11, kv_len=11, kv_heads=2)
    expected = loop(call, 3)
    np.testing.assert_allclose(variant.weights(call.expanded(), torch.arange(11)).numpy(), expected, atol=1e-13)
    assert (expected > 0).sum(-1).min() < 8
    for form in FORMS:
        np.testing.assert_allclose(run(SMALL + form, call).numpy(), expected @ call.expanded().v.numpy(), atol=1e-13)


def test_the_asymmetric_map_makes_all_equally_long_and_keeps_products() -> None:
    call = drawn(SOFTMAX, batch=1, heads=1, kv_heads=1)
    q, k = call.q[0, 0].numpy(), call.k[0, 0].numpy()
    of_q, of_k = mapped(q, k, 7)
    np.testing.assert_allclose([x @ x for x in of_q + of_k], of_q[0] @ of_q[0])
    np.testing.assert_allclose([[x @ y for y in of_k] for x in of_q], q @ k.T)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["full", "causal", "padded:0.5"])
def test_one_cluster_is_softmax_however_many_rounds(form: str, mask: str) -> None:
    name = f"smyrf:rounds-3:clusters-1.{form}"
    call = drawn(implementation(name).variant, mask=mask, kv_heads=2)
    torch.testing.assert_close(run(name, call), definition(SOFTMAX, call))


@pytest.mark.parametrize("form", FORMS)
def test_the_log_sum_exp_counts_a_key_once_for_each_round(form: str) -> None:
    name = f"smyrf:rounds-3:clusters-1.{form}"
    call = drawn(implementation(name).variant, mask="full")
    found = implementation(name).prepare(call, True)(call).lse
    torch.testing.assert_close(found, SOFTMAX.lse(call, torch.arange(7)) + math.log(3))


@pytest.mark.parametrize("form", FORMS)
def test_a_causal_mask_lets_no_later_value_through(form: str) -> None:
    call = drawn(implementation(SMALL + form).variant, q_len=9, kv_len=9)
    other = replace(call, v=call.v.clone())
    other.v[:, :, 5:] += 1.0
    assert torch.equal(run(SMALL + form, other)[:, :, :5], run(SMALL + form, call)[:, :, :5])


@pytest.mark.parametrize("form", FORMS)
def test_a_long_key_in_the_padding_moves_nobody(form: str) -> None:
    call = drawn(implementation(SMALL + form).variant, q_len=12, kv_len=12, mask="padded:0.5")
    long = call.k.clone()
    long[0, :, 6:] *= 50.0
    torch.testing.assert_close(run(SMALL + form, replace(call, k=long)), run(SMALL + form, call))
