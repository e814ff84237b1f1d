from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run, with_parameters
from attention_impls.variants.recurrent.kda import KDA


def change(state, call, b, g, j):
    key, beta = call.k[b, g, j].numpy(), call.parameters["beta"][b, g, j].item()
    key = key / np.sqrt(sum(key**2))
    erased = (np.eye(len(key)) - beta * np.outer(key, key)) @ np.diag(call.parameters["decay"][b, g, j].exp())
    return erased @ state + beta * np.outer(key, call.v[b, g, j])


@pytest.mark.parametrize("axes", steps.AXES)
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    steps.holds_to_the_recurrence(KDA, change, axes)


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_kimi_delta_attention_against_fla(form: str) -> None:
    call = drawn(KDA, q_len=64, kv_len=64)
    theirs = steps.fla_naive("kda/naive")
    made = (call.q, normalize(call.k, dim=-1), call.v, call.parameters["decay"], call.parameters["beta"])
    inputs = [steps.tokens_first(t) for t in made]
    ours = steps.tokens_first(run(f"kda.{form}", call))
    torch.testing.assert_close(ours, theirs.naive_recurrent_kda(*inputs)[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, theirs.naive_chunk_kda(*inputs)[0], rtol=1e-4, atol=1e-4)


def test_it_is_the_gated_delta_rule_with_a_decay_for_each_dimension_against_onnx() -> None:
    reference = pytest.importorskip("onnx.reference.ops.op_linear_attention")
    call = drawn(KDA, kv_heads=2, value_dim=3, q_len=9, kv_len=9)
    made = (call.q, normalize(call.k, dim=-1), call.v, call.parameters["decay"])
    flat = [t.transpose(1, 2).flatten(2).float().numpy() for t in made]
    beta = call.parameters["beta"].transpose(1, 2).float().numpy()
    theirs = reference.LinearAttention._run(
        None, *flat[:3], decay=flat[3], beta=beta, kv_num_heads=2, q_num_heads=4, update_rule="gated_delta"
    )[0]
    ours = run("kda.chunkwise", call).transpose(1, 2).flatten(2).float().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", steps.FORMS)
def test_the_same_decay_in_every_dimension_is_gated_delta(form: str) -> None:
    call = drawn(KDA, kv_heads=2)
    one = call.parameters["decay"][..., 0]
    call = with_parameters(call, decay=one[..., None].expand(-1, -1, -1, 4))
    gated = replace(with_parameters(call, decay=one), axes={"decay": "B G J", "beta": "B G J"})
    right = run("gated_delta.recurrent", gated)
    torch.testing.assert_close(run(f"kda.{form}", call), right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
def test_no_decay_is_deltanet(form: str) -> None:
    call = drawn(KDA, kv_heads=2)
    call = with_parameters(call, decay=call.parameters["decay"] * 0)
    own = replace(call, parameters={"beta": call.parameters["beta"]}, axes={"beta": "B G J"})
    torch.testing.assert_close(run(f"kda.{form}", call), run("deltanet.parallel", own), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
def test_axis_aligned_keys_that_never_return_leave_gla(form: str) -> None:
    call = drawn(KDA, q_len=4, kv_len=4)
    call.k.copy_(torch.eye(4))
    gla = replace(call, k=call.k * call.parameters["beta"][..., None])
    gla = replace(gla, parameters={"decay": call.parameters["decay"]}, axes={"decay": "B G J D"})
    torch.testing.assert_close(run(f"kda.{form}", call), run("gla.recurrent", gla), rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", steps.FORMS)
def test_strong_decay_leaves_the_own_key(form: str) -> None:
    call = drawn(KDA, q_len=40, kv_len=40)
    call = with_parameters(call, decay=call.parameters["decay"] * 0 - 200.0)
    weight = (call.q * normalize(call.k, dim=-1)).sum(-1) * call.parameters["beta"] / 2
    torch.testing.assert_close(run(f"kda.{form}", call), weight[..., None] * call.v, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(KDA, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(KDA)
    steps.early_queries_give_zeros(KDA)
    steps.oracle_is_the_matrix(KDA)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"kda.{form}", drawn(KDA), 4)
