from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, implementation, run, with_parameters
from attention_impls.variants.recurrent.rwkv4 import RWKV4


def loop(call):
    """The two sums token by token, without a stabiliser: read them with the own token, then fade and add it."""
    batch, heads, rows, size = call.q.shape
    out = np.zeros((batch, heads, rows, size))
    for b, h in np.ndindex(batch, heads):
        g = h // call.group
        fade, bonus = (call.parameters[n][g].exp().numpy() for n in ("decay", "bonus"))
        above, below = np.zeros(size), np.zeros(size)
        for j in range(call.mask.q_start + rows):
            here = j < call.k.shape[2]
            key = call.k[b, g, j].exp().numpy() if here else np.zeros(size)
            value = call.v[b, g, j].numpy() if here else np.zeros(size)
            if j >= call.mask.q_start:
                gate = 1 / (1 + np.exp(-call.q[b, h, j - call.mask.q_start].numpy()))
                mean = (above + bonus * key * value) / (below + bonus * key)
                out[b, h, j - call.mask.q_start] = gate * mean
            if here:
                above, below = fade * above + key * value, fade * below + key
    return torch.from_numpy(out)


@pytest.mark.parametrize("axes", [{}, {"kv_heads": 2}, {"q_len": 2, "mask": "causal:bottom_right"}, {"q_len": 9}])
def test_definition_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    call = drawn(RWKV4, **axes)
    for out in (steps.definition(RWKV4, call), *(run(f"rwkv4.{form}", call) for form in steps.FORMS)):
        torch.testing.assert_close(out, loop(call), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
def test_without_decay_and_bonus_it_is_causal_aft_simple(form: str) -> None:
    call = drawn(RWKV4, heads=2, kv_heads=2)
    zero = torch.zeros(2, 4).double()
    call = with_parameters(call, decay=zero, bonus=zero)
    power = call.k.exp()
    mean = (power * call.v).cumsum(2) / power.cumsum(2)
    torch.testing.assert_close(run(f"rwkv4.{form}", call), call.q.sigmoid() * mean)
    theirs = run("aft_simple.chunked", replace(call, parameters={}, axes={}))
    torch.testing.assert_close(run(f"rwkv4.{form}", call), theirs)


@pytest.mark.parametrize("form", steps.FORMS)
@pytest.mark.parametrize("shift", [500.0, -500.0])
def test_keys_of_any_size_neither_overflow_nor_vanish_in_float32(form: str, shift: float) -> None:
    call = drawn(RWKV4, q_len=40, kv_len=40)
    right = loop(call)
    shifted = replace(call, k=call.k + shift).map(torch.Tensor.float)
    torch.testing.assert_close(run(f"rwkv4.{form}", shifted).double(), right, rtol=0, atol=1e-3)


@pytest.mark.parametrize("form", steps.FORMS)
def test_constant_values_come_back_gated(form: str) -> None:
    call = drawn(RWKV4)
    call = replace(call, v=torch.full_like(call.v, 2.5))
    torch.testing.assert_close(run(f"rwkv4.{form}", call), 2.5 * call.q.sigmoid())


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(RWKV4, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(RWKV4)
    steps.early_queries_give_zeros(RWKV4)
    steps.oracle_is_the_matrix(RWKV4)


def test_other_sizes_and_scales_are_refused_by_a_sentence() -> None:
    made = implementation("rwkv4.recurrent")
    assert "must be equal" in made.refuses(drawn(RWKV4, value_dim=3))
    assert "no scale" in made.refuses(replace(drawn(RWKV4), scale=0.5))


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"rwkv4.{form}", drawn(RWKV4), 4)
