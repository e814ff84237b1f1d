from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import oracle
from attention_impls.call import Call
from attention_impls.mask import Mask
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run
from attention_impls.variants.linear.aft_simple import AFT_SIMPLE

CAUSAL = ("aft_simple.blocked", "aft_simple.blocked:block-3", "aft_simple.chunked", "aft_simple.chunked:chunk-3")
FULL = ("aft_simple.blocked", "aft_simple.summed")


def right(call: Call) -> torch.Tensor:
    return oracle.answer(AFT_SIMPLE, call, torch.arange(call.q.shape[2])).out


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_every_element_is_a_gated_mean_weighed_by_its_own_feature(mask: str) -> None:
    call = drawn(AFT_SIMPLE, mask=mask, q_len=5, kv_len=5)
    q, k, v = (x.numpy() for x in (call.q, call.k, call.v))
    expected = np.zeros((2, 4, 5, 4))
    for b, h, i, d in np.ndindex(2, 4, 5, 4):
        seen = range(5) if mask == "full" else range(i + 1)
        powers = [math.exp(k[b, h, j, d]) for j in seen]
        mean = sum(p * v[b, h, j, d] for j, p in zip(seen, powers, strict=True)) / sum(powers)
        expected[b, h, i, d] = mean / (1 + math.exp(-q[b, h, i, d]))
    np.testing.assert_allclose(right(call).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_forms_agree_from_any_start(name: str) -> None:
    for axes in (
        {"q_len": 11, "kv_len": 11, "mask": "causal+padded:0.4"},
        {"q_len": 4, "kv_len": 11, "mask": "causal:bottom_right"},
        {"kv_len": 4, "mask": "causal:bottom_right"},
        {"kv_len": 3},
    ):
        call = drawn(AFT_SIMPLE, kv_heads=2, **axes)
        torch.testing.assert_close(run(name, call), right(call))


@pytest.mark.parametrize("name", CAUSAL)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(AFT_SIMPLE), 4)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_huge_key_of_the_future_moves_no_earlier_row_in_float32(name: str) -> None:
    call = drawn(AFT_SIMPLE).map(torch.Tensor.float)
    k = call.k.clone()
    k[:, :, 5] = 1e4
    torch.testing.assert_close(run(name, replace(call, k=k))[:, :, :5], run(name, call)[:, :, :5], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", FULL)
def test_forms_that_see_all_keys_agree(name: str) -> None:
    call = drawn(AFT_SIMPLE, mask="padded:0.4", q_len=5, kv_len=11, kv_heads=2)
    torch.testing.assert_close(run(name, call), right(call))


@pytest.mark.parametrize("name", FULL)
def test_against_aft_pytorch(name: str) -> None:
    library = pytest.importorskip("aft_pytorch")
    layer = library.AFTSimple(max_seqlen=7, dim=4, hidden_dim=4).double()
    x = drawn(AFT_SIMPLE, batch=1, heads=1, kv_heads=1).q
    with torch.no_grad():
        layer.project.weight.copy_(torch.eye(4))
        layer.project.bias.zero_()
        q, k, v = (make(x) for make in (layer.to_q, layer.to_k, layer.to_v))
        torch.testing.assert_close(run(name, Call(q, k, v, Mask(7, 7), 1.0)), layer(x[0])[None])
