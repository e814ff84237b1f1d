from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run, with_parameters
from attention_impls.variants.recurrent.hgrn2 import HGRN2


def change(state, call, b, g, j):
    floor = call.parameters["floor"][g].numpy()
    forget = floor + (1 - floor) / (1 + np.exp(-call.k[b, g, j].numpy()))
    return forget[:, None] * state + np.outer(1 - forget, call.v[b, g, j])


@pytest.mark.parametrize("axes", steps.AXES)
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    steps.holds_to_the_recurrence(HGRN2, change, axes)


def gated(call):
    floor = call.parameters["floor"][:, None]
    forget = floor + (1 - floor) * call.k.sigmoid()
    return replace(call, k=1 - forget, parameters={"decay": forget.log()}, axes={"decay": "B G J D"})


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_gla_of_keys_that_the_gate_lets_go(form: str) -> None:
    call = drawn(HGRN2, kv_heads=2, value_dim=3)
    right = run("gla.recurrent", gated(call))
    torch.testing.assert_close(run(f"hgrn2.{form}", call), right, rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_gated_linear_attention_of_tied_gates_against_fla(form: str) -> None:
    call = drawn(HGRN2, q_len=40, kv_len=40)
    tied = gated(call)
    inputs = [steps.tokens_first(t) for t in (tied.q * 2.0, tied.k, tied.v, tied.parameters["decay"])]
    theirs = steps.fla_naive("gla/naive").naive_recurrent_gla(*inputs)[0]  # which scales by 4^-1/2
    torch.testing.assert_close(steps.tokens_first(run(f"hgrn2.{form}", call)), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", steps.FORMS)
def test_constant_values_stay_below_themselves_as_an_average_does(form: str) -> None:
    """1 − Π f of a constant value is held after some keys: never more than the value."""
    call = drawn(HGRN2, heads=1, kv_heads=1, value_dim=1, q_len=30, kv_len=30)
    call.v.fill_(2.0)
    call.q.copy_(torch.tensor([1.0, 0, 0, 0]))
    floor = call.parameters["floor"][0, 0]
    forget = floor + (1 - floor) * call.k[:, 0, :, 0].sigmoid()
    torch.testing.assert_close(run(f"hgrn2.{form}", call)[:, 0, :, 0], 2.0 * (1 - forget.cumprod(-1)))


@pytest.mark.parametrize("form", steps.FORMS)
def test_a_gate_that_is_shut_forgets_everything_without_nan(form: str) -> None:
    call = drawn(HGRN2, q_len=40, kv_len=40)
    call.k.fill_(-800.0)  # σ underflows
    call = with_parameters(call, floor=torch.zeros(4, 4).double())
    out = run(f"hgrn2.{form}", call)
    torch.testing.assert_close(out, call.q.sum(-1, keepdim=True) * call.v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(HGRN2, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(HGRN2)
    steps.early_queries_give_zeros(HGRN2)
    steps.oracle_is_the_matrix(HGRN2)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"hgrn2.{form}", drawn(HGRN2), 4)
