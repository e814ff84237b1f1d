from __future__ import annotations

import math

import pytest
import torch

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run, with_parameters
from attention_impls.variants.recurrent.lightning import LIGHTNING
from attention_impls.variants.recurrent.retention import log_decays

SLOPES = {4: [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], 2: [2.0**-4, 2.0**-8]}  # by the number of key/value heads


def change(state, call, b, g, j):
    slope = SLOPES[call.k.shape[1]][g]
    return math.exp(-slope) * state + torch.outer(call.k[b, g, j], call.v[b, g, j]).numpy()


@pytest.mark.parametrize("axes", steps.AXES)
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    steps.holds_to_the_recurrence(LIGHTNING, change, axes)


def test_its_scale_is_one() -> None:
    assert drawn(LIGHTNING).scale == 1.0


@pytest.mark.parametrize("form", steps.FORMS)
def test_with_the_decays_of_retention_it_is_retention(form: str) -> None:
    call = drawn(LIGHTNING, kv_heads=2)
    call = with_parameters(call, decay=log_decays(2))
    torch.testing.assert_close(run(f"lightning.{form}", call), run("retention.recurrent", call), rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", steps.FORMS)
def test_far_tokens_are_forgotten_without_overflow(form: str) -> None:
    """At slopes of 200 only the own key is left: e^200 · e^200 would not fit where decays are divided by."""
    call = drawn(LIGHTNING, q_len=40, kv_len=40)
    call = with_parameters(call, decay=torch.full((4,), -200.0).double())
    own = (call.q * call.k).sum(-1, keepdim=True) * call.v
    torch.testing.assert_close(run(f"lightning.{form}", call), own, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(LIGHTNING, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(LIGHTNING)
    steps.early_queries_give_zeros(LIGHTNING)
    steps.oracle_is_the_matrix(LIGHTNING)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"lightning.{form}", drawn(LIGHTNING), 4)
