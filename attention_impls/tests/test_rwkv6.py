from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run, with_parameters
from attention_impls.variants.recurrent.rwkv6 import RWKV6, squash_decay


def loop(call):
    """The recurrence token by token: read the state and the own token, then fade it and write."""
    batch, heads, rows, size = call.q.shape
    keys, values = call.v.shape[2:]
    out = np.zeros((batch, heads, rows, values))
    for b, h in np.ndindex(batch, heads):
        g, state = h // call.group, np.zeros((size, values))
        for j in range(call.mask.q_start + rows):
            here = j < keys
            written = np.outer(call.k[b, g, j], call.v[b, g, j]) if here else np.zeros_like(state)
            if j >= call.mask.q_start:
                q = call.scale * call.q[b, h, j - call.mask.q_start].numpy()
                out[b, h, j - call.mask.q_start] = q @ (state + np.diag(call.parameters["bonus"][g]) @ written)
            if here:
                state = np.diag(call.parameters["decay"][b, g, j].exp()) @ state + written
    return torch.from_numpy(out)


@pytest.mark.parametrize("axes", [*steps.AXES, {"q_len": 9}])
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    call = drawn(RWKV6, **axes)
    right = loop(call)
    for out in (steps.definition(RWKV6, call), *(run(f"rwkv6.{form}", call) for form in steps.FORMS)):
        torch.testing.assert_close(out, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_rwkv6_against_fla(form: str) -> None:
    call = drawn(RWKV6, q_len=40, kv_len=40)
    inputs = [t.float() for t in (call.q, call.k, call.v, call.parameters["decay"], call.parameters["bonus"])]
    theirs = steps.fla_naive("rwkv6/recurrent_naive").naive_recurrent_rwkv6(*inputs, scale=1.0)[0]
    torch.testing.assert_close(run(f"rwkv6.{form}", call).float(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", steps.FORMS)
def test_without_decay_and_with_a_bonus_of_one_it_is_unnormalised_linear_attention(form: str) -> None:
    call = drawn(RWKV6)
    call = with_parameters(call, decay=call.parameters["decay"] * 0, bonus=torch.ones(4, 4).double())
    torch.testing.assert_close(run(f"rwkv6.{form}", call), (call.q @ call.k.mT).tril() @ call.v)


@pytest.mark.parametrize("form", steps.FORMS)
def test_with_a_bonus_of_the_own_decay_it_is_gla_of_faded_queries(form: str) -> None:
    """q_iᵀ Diag(α) (S_{i−1} + k_i v_iᵀ / α): with one α for all tokens and u = 1/α, gla's state is read by q/α."""
    call = drawn(RWKV6, batch=1)
    alpha = torch.linspace(0.5, 0.9, 16).double().view(4, 4)
    decay = alpha.log().view(1, 4, 1, 4).expand(1, 4, 7, 4)
    call = with_parameters(call, decay=decay, bonus=1.0 / alpha)
    gla = replace(call, q=call.q / alpha[:, None], parameters={"decay": decay}, axes={"decay": "B G J D"})
    torch.testing.assert_close(run(f"rwkv6.{form}", call), run("gla.recurrent", gla), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
def test_strong_decay_leaves_the_own_token_and_the_one_before(form: str) -> None:
    call = drawn(RWKV6, q_len=40, kv_len=40)
    call = with_parameters(call, decay=call.parameters["decay"] * 0 - 200.0)
    own = (call.q * call.parameters["bonus"][:, None] * call.k).sum(-1, keepdim=True) * call.v
    own[:, :, 1:] += (call.q[:, :, 1:] * call.k[:, :, :-1]).sum(-1, keepdim=True) * call.v[:, :, :-1]
    torch.testing.assert_close(run(f"rwkv6.{form}", call), own, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(RWKV6, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(RWKV6)
    steps.early_queries_give_zeros(RWKV6)
    steps.oracle_is_the_matrix(RWKV6)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"rwkv6.{form}", drawn(RWKV6), 4)


def test_a_layers_projection_becomes_a_decay_between_zero_and_one() -> None:
    alpha = squash_decay(torch.tensor([-20.0, 0.0, 6.0]).double()).exp()
    assert alpha[0] > 0.999999 and 0.95 < alpha[1] < 0.96 and 0.0 < alpha[2] < 1e-6
