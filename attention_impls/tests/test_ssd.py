from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run, with_parameters
from attention_impls.variants.recurrent.gated_delta import GATED_DELTA
from attention_impls.variants.recurrent.ssd import SSD, squash_decay


def change(state, call, b, g, j):
    alpha = call.parameters["decay"][b, g, j].exp().item()
    return alpha * state + torch.outer(call.k[b, g, j], call.v[b, g, j]).numpy()


@pytest.mark.parametrize("axes", steps.AXES)
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    steps.holds_to_the_recurrence(SSD, change, axes)


def test_its_scale_is_one() -> None:
    assert drawn(SSD).scale == 1.0


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_simple_gated_linear_attention_against_fla(form: str) -> None:
    call = drawn(SSD, q_len=40, kv_len=40)
    q, k, v, g = (steps.tokens_first(t) for t in (call.q, call.k, call.v, call.parameters["decay"]))
    theirs = steps.fla_naive("simple_gla/naive")
    recurrent = theirs.naive_recurrent_simple_gla(q, k, v, g, scale=1.0)[0]
    chunked = theirs.naive_chunk_simple_gla(q, k, v, g, scale=1.0, chunk_size=8)[0]
    ours = steps.tokens_first(run(f"ssd.{form}", call))
    torch.testing.assert_close(ours, recurrent, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, chunked, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", steps.FORMS)
def test_gated_delta_without_what_it_erases_is_ssd(form: str) -> None:
    """Nothing is erased where keys are orthogonal: its β k̂ is the key here, and its scale that of the query."""
    delta = drawn(GATED_DELTA, q_len=4, kv_len=4)
    delta.k.copy_(3.0 * torch.eye(4))
    beta, decay = delta.parameters["beta"], delta.parameters["decay"]
    call = replace(drawn(SSD, q_len=4, kv_len=4), q=delta.q, v=delta.v, k=beta[..., None] * delta.k / 3, scale=0.5)
    call = with_parameters(call, decay=decay)
    torch.testing.assert_close(run(f"ssd.{form}", call), run("gated_delta.recurrent", delta), rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", steps.FORMS)
def test_a_constant_decay_is_lightning(form: str) -> None:
    call = drawn(SSD)
    slopes = torch.tensor([-0.25, -0.0625, -(2.0**-6), -(2.0**-8)]).double()
    call = with_parameters(call, decay=slopes.view(1, 4, 1).expand(2, 4, 7))
    right = run("lightning.recurrent", replace(call, parameters={"decay": slopes}, axes={"decay": "G"}))
    torch.testing.assert_close(run(f"ssd.{form}", call), right, rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", steps.FORMS)
def test_strong_decay_leaves_the_own_key(form: str) -> None:
    call = drawn(SSD, q_len=40, kv_len=40)
    call = with_parameters(call, decay=call.parameters["decay"] * 0 - 200.0)
    own = (call.q * call.k).sum(-1, keepdim=True) * call.v
    torch.testing.assert_close(run(f"ssd.{form}", call), own, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(SSD, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(SSD)
    steps.early_queries_give_zeros(SSD)
    steps.oracle_is_the_matrix(SSD)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"ssd.{form}", drawn(SSD), 4)


def test_a_layers_projection_becomes_a_decay_between_zero_and_one() -> None:
    alpha = squash_decay(torch.tensor([-20.0, 0.0, 20.0]).double()).exp()
    assert alpha[0] > 0.999999 and 0.85 < alpha[1] < 0.9 and 0.0 < alpha[2] < 1e-6
