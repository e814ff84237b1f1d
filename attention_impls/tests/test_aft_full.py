from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import oracle
from attention_impls.call import Call
from attention_impls.mask import Mask
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, implementation, run, with_parameters
from attention_impls.variants.linear.aft_full import AFT_FULL
from attention_impls.variants.linear.aft_simple import AFT_SIMPLE

FULL = ("aft_full.blocked", "aft_full.blocked:block-2", "aft_full.factored")


def right(call: Call) -> torch.Tensor:
    return oracle.answer(AFT_FULL, call, torch.arange(call.q.shape[2])).out


@pytest.mark.parametrize("mask", ["full", "causal", "dense:0.5"])
def test_every_element_is_a_gated_mean_with_weights_of_its_own(mask: str) -> None:
    call = drawn(AFT_FULL, mask=mask, q_len=5, kv_len=5)
    visible = call.mask.visible()
    seen = np.ones((2, 4, 5, 5), bool) if visible is None else visible.expand(2, 4, 5, 5).numpy()
    q, k, v, w = (x.numpy() for x in (call.q, call.k, call.v, call.parameters["bias"]))
    expected = np.zeros((2, 4, 5, 4))
    for b, h, i, d in np.ndindex(2, 4, 5, 4):
        powers = {j: math.exp(k[b, h, j, d] + w[i, j]) for j in range(5) if seen[b, h, i, j]}
        mean = sum(p * v[b, h, j, d] for j, p in powers.items()) / (sum(powers.values()) or 1.0)
        expected[b, h, i, d] = mean / (1 + math.exp(-q[b, h, i, d]))
    np.testing.assert_allclose(right(call).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FULL)
def test_forms_that_see_all_keys_agree(name: str) -> None:
    call = drawn(AFT_FULL, mask="padded:0.4", q_len=5, kv_len=11, kv_heads=2)
    torch.testing.assert_close(run(name, call), right(call))


@pytest.mark.parametrize("name", FULL[:2])
def test_the_blocked_form_takes_causal_and_dense_masks(name: str) -> None:
    for mask in ("causal", "dense:0.2", "packed:2+causal"):
        call = drawn(AFT_FULL, mask=mask, kv_heads=2)
        torch.testing.assert_close(run(name, call), right(call))
    changes_nothing_before(name, drawn(AFT_FULL), 4)


@pytest.mark.parametrize("name", FULL)
def test_a_bias_of_zero_gives_aft_simple(name: str) -> None:
    call = with_parameters(drawn(AFT_FULL, mask="full"), bias=torch.zeros(7, 7).double())
    simple = oracle.answer(AFT_SIMPLE, call, torch.arange(7)).out
    torch.testing.assert_close(run(name, call), simple)


@pytest.mark.parametrize("name", FULL)
def test_against_aft_pytorch(name: str) -> None:
    library = pytest.importorskip("aft_pytorch")
    layer = library.AFTFull(max_seqlen=7, dim=4, hidden_dim=4).double()
    x = drawn(AFT_FULL, batch=1, heads=1, kv_heads=1).q
    with torch.no_grad():
        layer.project.weight.copy_(torch.eye(4))
        layer.project.bias.zero_()
        q, k, v = (make(x) for make in (layer.to_q, layer.to_k, layer.to_v))
        expected = layer(x[0])[None]
        call = Call(q, k, v, Mask(7, 7), 1.0, {"bias": layer.wbias}, {"bias": "I J"})
        torch.testing.assert_close(run(name, call), expected)


@pytest.mark.parametrize("name", FULL)
def test_keys_and_biases_too_large_for_exp_do_not_overflow(name: str) -> None:
    call = drawn(AFT_FULL, mask="full")
    large = with_parameters(call, bias=call.parameters["bias"] + 500).map(torch.Tensor.float)
    shifted = Call(large.q, large.k + 300, large.v, large.mask, 1.0, large.parameters, large.axes)
    torch.testing.assert_close(run(name, shifted).double(), right(call), rtol=1e-3, atol=1e-3)


def test_there_is_no_scale() -> None:
    call = drawn(AFT_FULL, mask="full")
    halved = Call(call.q, call.k, call.v, call.mask, 0.5, call.parameters, call.axes)
    assert "has no scale" in (implementation("aft_full.factored").refuses(halved) or "")
