from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run, with_parameters
from attention_impls.variants.recurrent.deltanet import DELTANET
from attention_impls.variants.recurrent.gated_delta import GATED_DELTA


def change(state, call, b, g, j):
    key, beta = call.k[b, g, j].numpy(), call.parameters["beta"][b, g, j].item()
    key = key / np.sqrt(sum(key**2))
    return (np.eye(len(key)) - beta * np.outer(key, key)) @ state + beta * np.outer(key, call.v[b, g, j])


@pytest.mark.parametrize("axes", steps.AXES)
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    steps.holds_to_the_recurrence(DELTANET, change, axes)


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_the_delta_rule_against_fla(form: str) -> None:
    call = drawn(DELTANET, q_len=64, kv_len=64)
    theirs = steps.fla_naive("delta_rule/naive")
    inputs = [t.float() for t in (call.q, normalize(call.k, dim=-1), call.v, call.parameters["beta"])]
    ours = run(f"deltanet.{form}", call).float()
    torch.testing.assert_close(ours, theirs.delta_rule_recurrence(*inputs)[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, theirs.delta_rule_chunkwise(*inputs)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_gated_delta_without_decay(form: str) -> None:
    call = drawn(GATED_DELTA, q_len=40, kv_len=40, kv_heads=2)
    call = with_parameters(call, decay=call.parameters["decay"] * 0)
    own = replace(call, parameters={"beta": call.parameters["beta"]}, axes={"beta": "B G J"})
    for theirs in ("recurrent", "chunkwise:chunk-7"):
        right = run(f"gated_delta.{theirs}", call)
        torch.testing.assert_close(run(f"deltanet.{form}", own), right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
def test_writing_under_a_key_again_replaces_its_value(form: str) -> None:
    call = drawn(DELTANET, batch=1, heads=1, kv_heads=1, q_len=3, kv_len=3)
    call.k.copy_(torch.tensor([[2.0, 0, 0, 0], [0, 3.0, 0, 0], [5.0, 0, 0, 0]]))
    call.q.copy_(torch.tensor([1.0, 0, 0, 0]))
    call = with_parameters(call, beta=torch.ones(1, 1, 3).double())
    torch.testing.assert_close(run(f"deltanet.{form}", call)[0, 0] / call.scale, call.v[0, 0][[0, 0, 2]])


@pytest.mark.parametrize("form", steps.FORMS)
def test_orthogonal_keys_leave_unnormalised_linear_attention(form: str) -> None:
    call = drawn(DELTANET, q_len=4, kv_len=4)
    call.k.copy_(torch.eye(4))
    expected = (call.q / 2).tril() * call.parameters["beta"].unsqueeze(-2) @ call.v
    torch.testing.assert_close(run(f"deltanet.{form}", call), expected)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(DELTANET, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(DELTANET)
    steps.early_queries_give_zeros(DELTANET)
    steps.oracle_is_the_matrix(DELTANET)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"deltanet.{form}", drawn(DELTANET), 4)
