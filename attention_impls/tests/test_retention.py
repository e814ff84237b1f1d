from __future__ import annotations

import pytest
import torch

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run, with_parameters
from attention_impls.variants.recurrent.retention import RETENTION, log_decays

GAMMAS = [31 / 32, 63 / 64, 127 / 128, 255 / 256]


def change(state, call, b, g, j):
    return GAMMAS[g] * state + torch.outer(call.k[b, g, j], call.v[b, g, j]).numpy()


def test_the_decays_are_the_papers() -> None:
    torch.testing.assert_close(log_decays(4).exp(), torch.tensor(GAMMAS).double(), rtol=1e-15, atol=0)


@pytest.mark.parametrize("axes", steps.AXES)
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    call = drawn(RETENTION, **axes)
    exact = torch.tensor(GAMMAS).double().log()[: call.k.shape[1]]  # the parameter is the float32 of it
    right = steps.recurrence(call, change)
    for out in (steps.definition(RETENTION, call), *(run(f"retention.{form}", call) for form in steps.FORMS)):
        torch.testing.assert_close(out, right, rtol=0, atol=1e-7)
    call = with_parameters(call, decay=exact)
    for out in (steps.definition(RETENTION, call), *(run(f"retention.{form}", call) for form in steps.FORMS)):
        torch.testing.assert_close(out, right, rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", steps.FORMS)
def test_no_decay_is_unnormalised_linear_attention(form: str) -> None:
    call = drawn(RETENTION)
    call = with_parameters(call, decay=torch.zeros(4).double())
    torch.testing.assert_close(run(f"retention.{form}", call), (call.q @ call.k.mT / 2).tril() @ call.v)


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_retention_against_fla(form: str) -> None:
    call = drawn(RETENTION, q_len=40, kv_len=40)
    theirs = steps.fla_naive("retention/naive").naive_retention(call.q, call.k, call.v)
    torch.testing.assert_close(run(f"retention.{form}", call).float(), theirs.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(RETENTION, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(RETENTION)
    steps.early_queries_give_zeros(RETENTION)
    steps.oracle_is_the_matrix(RETENTION)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"retention.{form}", drawn(RETENTION), 4)
