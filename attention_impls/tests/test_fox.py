"""Forgetting attention: a loop, flash-linear-attention's naive form, softmax and ALiBi as its cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests.fla_by_path import naive
from attention_impls.tests.score_loops import out_by_loop, seen_by_loop
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    run,
    softmax_loop,
    with_parameters,
)
from attention_impls.variants.positional.alibi import ALIBI
from attention_impls.variants.positional.fox import FOX
from attention_impls.variants.scores.softmax import SOFTMAX

KERNELS = ("fox.naive", "fox.blocks", "fox.blocks:block-2")
CALLS = [
    {},
    {"kv_heads": 2},
    {"q_len": 3, "mask": "causal:bottom_right"},
    {"q_len": 9, "kv_len": 4},
    {"q_len": 9, "kv_len": 4, "mask": "causal:bottom_right"},  # five queries see no key
]


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, axes: dict) -> None:
    call = drawn(FOX, **axes)
    q, k, forget, seen = call.q.numpy(), call.k.numpy(), call.parameters["forget"].numpy(), seen_by_loop(call)
    weights = np.zeros(seen.shape)
    for b, h, r in np.ndindex(*q.shape[:3]):
        i, keys = call.mask.q_start + r, k[b, h * k.shape[1] // 4]
        gates = [sum(forget[b, h, j + 1 : i + 1]) for j in range(len(keys))]
        weights[b, h, r] = softmax_loop(np.array([sum(q[b, h, r] * key) / 2.0 for key in keys]) + gates, seen[b, h, r])
    torch.testing.assert_close(definition(FOX, call), out_by_loop(call, weights))
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", KERNELS)
def test_it_agrees_with_flash_linear_attention(name: str) -> None:
    call = drawn(FOX, kv_heads=2)
    q, k, v, forget = (t.transpose(1, 2) for t in (call.q, call.k, call.v, call.parameters["forget"]))
    theirs = naive("forgetting_attn").naive_forgetting_attn(q, k, v, forget).transpose(1, 2)
    torch.testing.assert_close(run(name, call), theirs.double(), rtol=1e-5, atol=1e-6)  # it sums in float32


@pytest.mark.parametrize("name", KERNELS)
def test_gates_that_forget_nothing_are_softmax(name: str) -> None:
    call = drawn(FOX)
    kept = with_parameters(call, forget=torch.zeros(2, 4, 7).double())
    torch.testing.assert_close(run(name, kept), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", KERNELS)
def test_one_constant_gate_a_head_is_alibi(name: str) -> None:
    call = drawn(ALIBI)
    constant = -call.parameters["slopes"][None, :, None].expand(2, 4, 7)
    gated = replace(call, parameters={"forget": constant}, axes={"forget": "B H J"})
    torch.testing.assert_close(run(name, gated), definition(ALIBI, call))


@pytest.mark.parametrize("name", KERNELS)
def test_a_gate_shut_at_a_token_hides_all_that_came_before_it(name: str) -> None:
    call = drawn(FOX)
    forget = call.parameters["forget"].clone()
    forget[:, :, 4] = -1e4
    out = run(name, with_parameters(call, forget=forget))
    later = call.rows(4, 7).keys(4, 7)
    torch.testing.assert_close(out[:, :, 4:], definition(FOX, later))


@pytest.mark.parametrize("name", KERNELS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(FOX), 4)


def test_long_sums_keep_near_keys_apart_in_float32() -> None:
    """After 2990 gates of −20 each a float32 sum moves in steps of 1/256, more than a late gate is worth."""
    call = drawn(FOX, q_len=3000, kv_len=3000, batch=1, heads=1, kv_heads=1)
    forget = call.parameters["forget"].clone()
    forget[..., :2990] = -20.0
    call = with_parameters(call, forget=forget).rows(2990, 3000)
    single = call.map(torch.Tensor.float)
    for name in KERNELS:
        torch.testing.assert_close(run(name, single).double(), definition(FOX, call), rtol=1e-4, atol=1e-5)
