"""The oracle against an independent loop over single numbers, and against finite differences."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import oracle
from attention_impls.call import Call
from attention_impls.contract import Parameter, Variant, Workload
from attention_impls.inputs import draw, draw_upstream
from attention_impls.makers import softmax_of
from attention_impls.variants.scores.softmax import SOFTMAX

SMALL = Workload(batch=2, heads=4, kv_heads=2, q_len=5, kv_len=6, head_dim=3, value_dim=2, dtype="f64")
ALL = torch.arange(5)


def looped(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """Softmax attention one number at a time: out [B, H, I, E] and LSE [B, H, I]."""
    q, k, v = (t.double().numpy() for t in (call.q, call.k, call.v))
    batch, heads, rows, size = q.shape
    out, lse = np.zeros((batch, heads, rows, v.shape[3])), np.full((batch, heads, rows), -np.inf)
    seen = call.mask.visible()
    open_ = np.ones((batch, heads, rows, k.shape[2]), bool) if seen is None else seen.numpy()
    open_ = np.broadcast_to(open_, (batch, heads, rows, k.shape[2]))
    for b, h, i in np.ndindex(batch, heads, rows):
        group = h // (heads // k.shape[1])
        weights = {}
        for j in np.flatnonzero(open_[b, h, i]):
            weights[j] = math.exp(sum(q[b, h, i, d] * k[b, group, j, d] for d in range(size)) * call.scale)
        total = sum(weights.values())
        if weights:
            lse[b, h, i] = math.log(total)
        for j, weight in weights.items():
            out[b, h, i] += weight / total * v[b, group, j]
    return out, lse


@pytest.mark.parametrize("mask", ["full", "causal", "causal:bottom_right", "padded:0.5", "dense:0.3"])
def test_softmax_is_what_a_loop_over_single_numbers_gives(mask: str) -> None:
    call = draw(SOFTMAX, replace(SMALL, mask=mask))
    out, lse = looped(call)
    found = oracle.answer(SOFTMAX, call, ALL)
    assert found.lse is not None
    np.testing.assert_allclose(found.out.numpy(), out, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(found.lse.numpy(), lse, rtol=1e-13, atol=1e-15)


def test_inputs_are_rounded_but_the_oracle_is_not() -> None:
    call = draw(SOFTMAX, replace(SMALL, dtype="bf16"))
    out, _ = looped(call)
    found = oracle.answer(SOFTMAX, call, ALL).out
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), out, rtol=1e-13, atol=1e-15)


def test_the_yardstick_runs_in_the_dtype_asked_for() -> None:
    call = draw(SOFTMAX, replace(SMALL, dtype="bf16"))
    rough = oracle.answer(SOFTMAX, call, ALL, upstream=draw_upstream(call.q[..., :2]), dtype=torch.bfloat16)
    assert {rough.out.dtype, *(g.dtype for g in rough.gradients.values())} == {torch.bfloat16}
    exact = oracle.answer(SOFTMAX, call, ALL).out
    assert 1e-4 < float((rough.out.double() - exact).norm() / exact.norm()) < 2e-2


def test_sampled_rows_are_rows_of_the_whole() -> None:
    call = draw(SOFTMAX, replace(SMALL, mask="causal"))
    whole, some = (oracle.answer(SOFTMAX, call, rows) for rows in (ALL, torch.tensor([4, 1])))
    assert torch.equal(some.out, whole.out[:, :, [4, 1]])
    assert whole.lse is not None
    assert some.lse is not None
    assert torch.equal(some.lse, whole.lse[:, :, [4, 1]])


def test_gradients_of_sampled_rows_are_those_of_an_upstream_that_is_zero_elsewhere() -> None:
    call = draw(SOFTMAX, replace(SMALL, mask="causal"))
    rows = torch.tensor([1, 3])
    upstream = draw_upstream(call.q[..., :2], rows=rows)
    whole = oracle.answer(SOFTMAX, call, ALL, upstream=upstream).gradients
    some = oracle.answer(SOFTMAX, call, rows, upstream=upstream[:, :, rows]).gradients
    for name, gradient in whole.items():
        torch.testing.assert_close(some[name], gradient, rtol=1e-12, atol=1e-15)


BIASED = softmax_of(
    "biased",
    lambda call, rows: call.q[:, :, rows] @ call.k.mT * call.scale + call.parameters["bias"][:, None],
    parameters={"bias": Parameter("H J", "weight"), "fixed": Parameter("J", "constant")},
)


@pytest.mark.parametrize("name", ["q", "k", "v", "bias"])
def test_gradients_are_finite_differences(name: str) -> None:
    call = draw(BIASED, replace(SMALL, batch=1, mask="causal"))
    upstream = draw_upstream(call.q[..., :2])
    found = oracle.answer(BIASED, call, ALL, upstream=upstream, learned=frozenset({"bias"})).gradients
    assert set(found) == {"q", "k", "v", "bias"}
    value = call.parameters["bias"] if name == "bias" else getattr(call, name)

    def total(changed: torch.Tensor) -> float:
        own = {**call.parameters, "bias": changed} if name == "bias" else call.parameters
        changes = {"parameters": own} if name == "bias" else {name: changed}
        return float((oracle.answer(BIASED, replace(call, **changes), ALL).out * upstream).sum())

    step, flat = 1e-6, value.flatten()
    for at in range(0, flat.numel(), 3):
        aside = torch.zeros_like(flat)
        aside[at] = step
        slope = (total(value + aside.view_as(value)) - total(value - aside.view_as(value))) / (2 * step)
        assert float(found[name].flatten()[at]) == pytest.approx(slope, abs=1e-8)


def test_an_input_that_is_not_read_has_a_gradient_of_zeros() -> None:
    blind = softmax_of("blind", lambda call, rows: call.q[:, :, rows] @ call.q.mT)
    call = draw(blind, replace(SMALL, kv_len=5))
    found = oracle.answer(blind, call, ALL, upstream=draw_upstream(call.q[..., :2])).gradients
    assert found["k"].shape == call.k.shape
    assert not found["k"].any()


def test_queries_without_keys_give_zeros_minus_infinity_and_zero_gradients() -> None:
    call = draw(SOFTMAX, replace(SMALL, q_len=8, mask="causal:bottom_right"))
    found = oracle.answer(SOFTMAX, call, torch.arange(8), upstream=draw_upstream(call.q[..., :2]))
    assert found.lse is not None
    assert not found.out[:, :, :2].any()
    assert found.lse[:, :, :2].isneginf().all()
    assert not found.gradients["q"][:, :, :2].any()
    assert all(g.isfinite().all() for g in found.gradients.values())


def test_an_empty_batch_has_empty_answers() -> None:
    call = draw(SOFTMAX, replace(SMALL, batch=0))
    found = oracle.answer(SOFTMAX, call, ALL, upstream=call.q.new_zeros(0, 4, 5, 2))
    assert found.out.shape == (0, 4, 5, 2)
    assert found.gradients["k"].shape == call.k.shape


def test_the_call_is_left_alone() -> None:
    call = draw(SOFTMAX, SMALL)
    oracle.answer(SOFTMAX, call, ALL, upstream=draw_upstream(call.q[..., :2]))
    assert not any(t.requires_grad for t in call.tensors())


def test_heads_that_are_coupled_are_not_taken_apart() -> None:
    def mixed(call: Call, rows: torch.Tensor) -> torch.Tensor:
        shape = (*call.q.shape[:2], len(rows), call.k.shape[2])
        return call.q.new_full(shape, float(call.q.shape[1]))

    call = draw(SOFTMAX, SMALL)
    together = Variant("mixed", weights=mixed, couples=frozenset({"heads"}))
    apart = replace(together, couples=frozenset())
    whole = oracle.answer(together, call, ALL).out
    torch.testing.assert_close(whole, 2 * oracle.answer(apart, call, ALL).out)


def test_finish_comes_after_the_values_and_a_faster_form_only_for_long_calls() -> None:
    doubled = replace(SOFTMAX, finish=lambda out, call, rows: out * 2, oracle=lambda call, rows: call.v[:, :, rows] * 0)
    call = draw(SOFTMAX, SMALL)
    assert torch.equal(oracle.answer(doubled, call, ALL).out, 2 * oracle.answer(SOFTMAX, call, ALL).out)
    long = draw(SOFTMAX, replace(SMALL, q_len=oracle.ORACLE_FROM, kv_len=oracle.ORACLE_FROM))
    assert not oracle.answer(doubled, long, ALL).out.any()
