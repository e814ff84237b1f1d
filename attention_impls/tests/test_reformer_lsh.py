from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.tests.variant_steps import definition, drawn, implementation, run, softmax_loop, with_parameters
from attention_impls.variants.sparse.reformer_lsh import chunks_of, sorted_order

FORMS = ("dense", "sorted")
SMALL = "reformer_lsh:rounds-2:chunk-3"


def order_by_hand(call: Call, b: int, h: int, n: int) -> list[int]:
    """Token indices in hash order of one round: bucket argmax([qR; −qR]), the first of equals, then position."""
    q, rotation = call.q[b, h].numpy(), call.parameters["rotations"][n].numpy()
    buckets = []
    for x in q:
        scores = [sum(x * rotation[:, z]) for z in range(rotation.shape[1])]
        scores += [-s for s in scores]
        buckets.append(scores.index(max(scores)))
    return sorted(range(len(q)), key=lambda i: (buckets[i], i))


def loop(call: Call, chunk: int) -> np.ndarray:
    batch, heads, tokens, dim = call.q.shape
    expected = np.zeros((batch, heads, tokens, tokens))
    count = math.ceil(tokens / chunk)
    for b, h in np.ndindex(batch, heads):
        near = np.zeros((tokens, tokens), bool)
        for n in range(call.parameters["rotations"].shape[0]):
            place = {token: at // chunk for at, token in enumerate(order_by_hand(call, b, h, n))}
            for i, j in np.ndindex(tokens, tokens):
                near[i, j] |= place[j] in (place[i], (place[i] - 1) % count)
        q = call.q[b, h].numpy()
        for i in range(tokens):
            logits = np.array([sum(q[i] * q[j]) / math.sqrt(sum(q[j] ** 2)) / math.sqrt(dim) for j in range(tokens)])
            seen = near[i] & ((np.arange(tokens) <= i) | (not call.mask.causal))
            others = seen & (np.arange(tokens) != i)
            expected[b, h, i] = softmax_loop(logits, others if others.any() else seen)
    return expected


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_every_element_is_softmax_over_the_chunks_of_any_round(mask: str) -> None:
    variant = catalogue.find(f"{SMALL}.dense").variant
    call = drawn(variant, mask=mask, q_len=11, kv_len=11)
    expected = loop(call, 3)
    np.testing.assert_allclose(variant.weights(call, torch.arange(11)).numpy(), expected, atol=1e-13)
    assert (expected.sum(-1) > 0.99).all() and (expected > 0).sum(-1).min() < 10  # sparse, yet no row empty


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["full", "causal", "padded:0.5", "packed:2+causal", "dense:0.5"])
def test_both_forms_are_the_definition(form: str, mask: str) -> None:
    call = drawn(catalogue.find(f"{SMALL}.dense").variant, mask=mask, q_len=14, kv_len=14, kv_heads=2)
    torch.testing.assert_close(run(f"{SMALL}.{form}", call), definition(implementation(f"{SMALL}.dense").variant, call))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [3, 4, 6])
def test_one_round_of_two_chunks_is_dense_attention_of_shared_queries_and_keys(form: str, chunk: int) -> None:
    name = f"reformer_lsh:rounds-1:chunk-{chunk}.{form}"
    call = drawn(implementation(name).variant, mask="full", q_len=6, kv_len=6)
    q = call.q
    logits = q @ (q / q.norm(dim=-1, keepdim=True)).mT * call.scale
    logits.diagonal(dim1=-2, dim2=-1).fill_(-math.inf)
    torch.testing.assert_close(run(name, call), torch.softmax(logits, -1) @ call.v)


@pytest.mark.parametrize("form", FORMS)
def test_a_token_that_sees_nothing_else_sees_itself(form: str) -> None:
    for length, mask in ((1, "full"), (9, "causal")):
        call = drawn(implementation(f"{SMALL}.{form}").variant, mask=mask, q_len=length, kv_len=length)
        torch.testing.assert_close(run(f"{SMALL}.{form}", call)[:, :, 0], call.v[:, :, 0])


@pytest.mark.parametrize("form", FORMS)
def test_keys_are_not_read(form: str) -> None:
    call = drawn(implementation(f"{SMALL}.{form}").variant, q_len=9, kv_len=9)
    assert torch.equal(run(f"{SMALL}.{form}", replace(call, k=call.k + 1)), run(f"{SMALL}.{form}", call))


def test_equal_hashes_keep_the_order_of_positions_and_padding_comes_last() -> None:
    variant = catalogue.find(f"{SMALL}.dense").variant
    call = drawn(variant, mask="padded:0.5", batch=1, heads=1, kv_heads=1, q_len=6, kv_len=6)
    same = torch.ones_like(call.q)
    assert sorted_order(replace(call, q=same))[0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    for sign in (1.0, -1.0):  # padding in the bucket after, then in the bucket before
        apart = sign * same
        apart[..., 3:, :] *= -1.0
        assert sorted_order(replace(call, q=apart))[0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_chunks_by_hand() -> None:
    order = torch.tensor([[[[4, 0, 2, 1, 3]]]])  # tokens 4 and 0 first: chunks of two are {4, 0}, {2, 1}, {3}
    assert chunks_of(order, 2)[0, 0, 0].tolist() == [0, 1, 1, 2, 0]


def test_buckets_grow_with_the_length_and_are_even() -> None:
    variant = catalogue.find(f"{SMALL}.dense").variant
    shapes = [drawn(variant, q_len=n, kv_len=n).parameters["rotations"].shape[2] for n in (1, 6, 7, 12, 13)]
    assert shapes == [1, 1, 2, 2, 3]  # half the buckets: chunks of three, in pairs


def test_half_precision_and_float64_agree_on_who_sees_whom() -> None:
    variant = catalogue.find(f"{SMALL}.dense").variant
    call = drawn(variant, q_len=128, kv_len=128).map(torch.Tensor.bfloat16)
    call = with_parameters(call, rotations=call.parameters["rotations"].float())
    assert torch.equal(sorted_order(call), sorted_order(call.map(torch.Tensor.double)))


@pytest.mark.parametrize("form", FORMS)
def test_a_causal_mask_lets_no_later_value_through(form: str) -> None:
    call = drawn(implementation(f"{SMALL}.{form}").variant, q_len=9, kv_len=9)
    other = replace(call, v=call.v.clone())
    other.v[:, :, 5:] += 1.0
    assert torch.equal(run(f"{SMALL}.{form}", other)[:, :, :5], run(f"{SMALL}.{form}", call)[:, :, :5])


def test_counts_below_one_are_errors() -> None:
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        catalogue.find("reformer_lsh:rounds-0.dense")
