from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.mask import Mask
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation, run
from attention_impls.variants.scores.softmax import SOFTMAX
from attention_impls.variants.sparse.quest import _Bounds

FORMS = ("dense", "gathered", "gathered:rows-5")
CALLS = [
    {"q_len": 17, "kv_len": 17, "mask": "causal"},
    {"q_len": 18, "kv_len": 18, "mask": "causal+padded:0.4"},
    {"q_len": 1, "kv_len": 19, "mask": "causal:bottom_right", "kv_heads": 2},
    {"q_len": 6, "kv_len": 19, "mask": "padded:0.5", "kv_heads": 2},
    {"q_len": 20, "kv_len": 9, "mask": "causal"},
]


def loop(call: Call, page: int, chosen: int) -> np.ndarray:
    """A from the formula, one query and one channel at a time."""
    q, k = call.q.numpy(), call.expanded().k.numpy()
    keys, dim = k.shape[2:]
    visible = call.mask.visible().expand(*q.shape[:3], keys).numpy()
    expected = np.zeros((*q.shape[:3], keys))
    for b, h, i in np.ndindex(*q.shape[:3]):
        seen = [j for j in range(keys) if visible[b, h, i, j]]
        bounds = {}
        for n in {j // page for j in seen}:
            members = [k[b, h, j] for j in seen if j // page == n]
            low, high = ([f(x[d] for x in members) for d in range(dim)] for f in (min, max))
            bounds[n] = sum(max(q[b, h, i, d] * low[d], q[b, h, i, d] * high[d]) for d in range(dim))
        pages = sorted(bounds, key=lambda n: (-bounds[n], n))[:chosen]
        kept = [j for j in seen if j // page in pages]
        powers = np.exp([q[b, h, i] @ k[b, h, j] / dim**0.5 for j in kept])
        expected[b, h, i, kept] = powers / powers.sum()
    return expected


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("chosen", [1, 2])
def test_every_element_is_softmax_over_the_pages_with_the_largest_bounds(axes: dict, chosen: int) -> None:
    variant = catalogue.find(f"quest:page-4:chosen-{chosen}.dense").variant
    call = drawn(variant, **axes)
    expected = loop(call, 4, chosen)
    found = variant.weights(call.expanded(), torch.arange(call.q.shape[2])).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-13)
    for form in FORMS:
        out = run(f"quest:page-4:chosen-{chosen}.{form}", call).numpy()
        np.testing.assert_allclose(out, expected @ call.expanded().v.numpy(), atol=1e-13)


def test_a_bound_is_above_every_product_of_its_page_and_reached_by_a_page_of_one() -> None:
    call = drawn(SOFTMAX, q_len=5, kv_len=8, mask="full")
    products = call.q @ call.k.mT
    bounds = _Bounds.of(4, call).whole_pages(call.q)
    assert (bounds.repeat_interleave(4, -1) >= products).all()
    torch.testing.assert_close(_Bounds.of(1, call).whole_pages(call.q), products)


@pytest.mark.parametrize("form", FORMS)
def test_a_page_without_keys_is_never_taken_before_one_whose_bound_is_negative(form: str) -> None:
    call = drawn(SOFTMAX, q_len=3, kv_len=12, mask="padded:0.5")
    call = replace(call, q=call.q.abs(), k=-call.k.abs())
    expected = loop(call, 4, 1) @ call.v.numpy()
    assert call.mask.key_lengths.tolist()[0] == 6
    np.testing.assert_allclose(run(f"quest:page-4:chosen-1.{form}", call).numpy(), expected, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_pages_of_one_key_are_top_k_and_all_pages_are_softmax(form: str) -> None:
    call = drawn(SOFTMAX, q_len=11, kv_len=11)
    top = definition(implementation("topk:k-3.dense").variant, call)
    torch.testing.assert_close(run(f"quest:page-1:chosen-3.{form}", call), top)
    torch.testing.assert_close(run(f"quest:page-4:chosen-3.{form}", call), definition(SOFTMAX, call))


@pytest.mark.parametrize("form", FORMS)
def test_a_query_decoded_alone_chooses_what_it_chose_among_many(form: str) -> None:
    whole = drawn(SOFTMAX, q_len=14, kv_len=14)
    name = f"quest:page-4:chosen-2.{form}"
    alone = replace(whole.rows(10, 11).keys(0, 11), mask=Mask(1, 11, causal=True, q_start=10))
    torch.testing.assert_close(run(name, alone), run(name, whole)[:, :, 10:11])


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"quest:page-3:chosen-1.{form}", drawn(SOFTMAX), 4)
