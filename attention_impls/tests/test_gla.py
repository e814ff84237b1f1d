from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run, with_parameters
from attention_impls.variants.recurrent.gla import GLA, squash_decay


def change(state, call, b, g, j):
    alpha = call.parameters["decay"][b, g, j].exp().numpy()
    return np.diag(alpha) @ state + np.outer(call.k[b, g, j], call.v[b, g, j])


@pytest.mark.parametrize("axes", steps.AXES)
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    steps.holds_to_the_recurrence(GLA, change, axes)


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_gated_linear_attention_against_fla(form: str) -> None:
    call = drawn(GLA, q_len=40, kv_len=40)
    inputs = (steps.tokens_first(t) for t in (call.q, call.k, call.v, call.parameters["decay"]))
    theirs = steps.fla_naive("gla/naive").naive_recurrent_gla(*inputs)[0]
    torch.testing.assert_close(steps.tokens_first(run(f"gla.{form}", call)), theirs, rtol=1e-4, atol=1e-4)


def test_it_is_the_gated_rule_against_onnx() -> None:
    reference = pytest.importorskip("onnx.reference.ops.op_linear_attention")
    call = drawn(GLA, kv_heads=2, value_dim=3, q_len=9, kv_len=9)
    flat = [t.transpose(1, 2).flatten(2).float().numpy() for t in (call.q, call.k, call.v, call.parameters["decay"])]
    theirs = reference.LinearAttention._run(
        None, *flat[:3], decay=flat[3], kv_num_heads=2, q_num_heads=4, update_rule="gated"
    )[0]
    ours = run("gla.chunkwise", call).transpose(1, 2).flatten(2).float().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", steps.FORMS)
def test_no_decay_is_unnormalised_linear_attention(form: str) -> None:
    call = drawn(GLA)
    call = with_parameters(call, decay=call.parameters["decay"] * 0)
    torch.testing.assert_close(run(f"gla.{form}", call), (call.q @ call.k.mT / 2).tril() @ call.v)


@pytest.mark.parametrize("form", steps.FORMS)
def test_the_same_decay_in_every_dimension_is_ssd(form: str) -> None:
    call = drawn(GLA, kv_heads=2)
    one = call.parameters["decay"][..., 0]
    call = with_parameters(call, decay=one[..., None].expand(-1, -1, -1, 4))
    right = run("ssd.recurrent", replace(call, parameters={"decay": one}, axes={"decay": "B G J"}))
    torch.testing.assert_close(run(f"gla.{form}", call), right, rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", steps.FORMS)
def test_strong_decay_leaves_the_own_key(form: str) -> None:
    call = drawn(GLA, q_len=40, kv_len=40)
    call = with_parameters(call, decay=call.parameters["decay"] * 0 - 200.0)
    own = (call.q * call.k).sum(-1, keepdim=True) * call.v / 2
    torch.testing.assert_close(run(f"gla.{form}", call), own, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(GLA, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(GLA)
    steps.early_queries_give_zeros(GLA)
    steps.oracle_is_the_matrix(GLA)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"gla.{form}", drawn(GLA), 4)


def test_a_layers_projection_becomes_a_decay_between_zero_and_one() -> None:
    alpha = squash_decay(torch.tensor([-30.0, 0.0, 20.0]).double()).exp()
    assert 0.15 < alpha[0] < 0.16 and 0.95 < alpha[1] < 0.96 and 0.999999 < alpha[2] <= 1.0
