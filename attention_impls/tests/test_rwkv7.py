from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run, with_parameters
from attention_impls.variants.recurrent.rwkv7 import RWKV7, squash_decay

AXES = {"decay": "B G J D", "beta": "B G J"}


def change(state, call, b, g, j):
    k, v = call.k[b, g, j].numpy(), call.v[b, g, j].numpy()
    p = {name: (x[b, g, j] if x.dim() == 4 else x[g]).numpy() for name, x in call.parameters.items()}
    removed = k * p["removal"]
    removed = removed / np.sqrt(sum(removed**2))
    moved = np.diag(np.exp(p["decay"])) - np.outer(p["rate"] * removed, removed)
    return moved @ state + np.outer(k * (1 + (p["rate"] - 1) * p["replacement"]), v)


@pytest.mark.parametrize("axes", steps.AXES)
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    steps.holds_to_the_recurrence(RWKV7, change, axes)


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_a_diagonal_plus_rank_one_recurrence_against_fla(form: str) -> None:
    call = drawn(RWKV7, q_len=64, kv_len=64)
    p = call.parameters
    removed = normalize(call.k * p["removal"][:, None], dim=-1)
    written = call.k * (1 + (p["rate"] - 1) * p["replacement"][:, None])
    made = (2.0 * call.q, written, call.v, -removed, p["rate"] * removed, p["decay"])  # they scale by 4^-1/2
    inputs = [t.float() for t in made]
    theirs = steps.fla_naive("generalized_delta_rule/dplr/naive")
    ours = run(f"rwkv7.{form}", call).float()
    torch.testing.assert_close(ours, theirs.dplr_recurrence(*inputs)[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, theirs.dplr_chunkwise(*inputs)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", steps.FORMS)
def test_without_a_learning_rate_it_is_gla(form: str) -> None:
    call = drawn(RWKV7, kv_heads=2)
    call = with_parameters(call, rate=call.parameters["rate"] * 0)
    kept = call.k * (1 - call.parameters["replacement"][:, None])
    gla = replace(call, k=kept, parameters={"decay": call.parameters["decay"]}, axes=AXES)
    torch.testing.assert_close(run(f"rwkv7.{form}", call), run("gla.recurrent", gla), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
def test_one_rate_for_all_dimensions_and_no_decay_is_deltanet(form: str) -> None:
    call = drawn(RWKV7, kv_heads=2)
    call = replace(call, k=normalize(call.k, dim=-1))
    beta, one = call.parameters["rate"][..., 0], torch.ones(2, 4).double()
    rate = beta[..., None].expand(-1, -1, -1, 4)
    call = with_parameters(call, decay=rate * 0, rate=rate, removal=one, replacement=one)
    delta = replace(call, parameters={"beta": beta}, axes=AXES)
    torch.testing.assert_close(run(f"rwkv7.{form}", call), run("deltanet.recurrent", delta), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
def test_strong_decay_neither_overflows_nor_divides_by_zero(form: str) -> None:
    """What is erased is read before the state fades: the key before can still be felt, through the own key alone."""
    call = drawn(RWKV7, q_len=40, kv_len=40)
    call = with_parameters(call, decay=call.parameters["decay"] * 0 - 200.0)
    torch.testing.assert_close(run(f"rwkv7.{form}", call), steps.recurrence(call, change), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(RWKV7, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(RWKV7)
    steps.early_queries_give_zeros(RWKV7)
    steps.oracle_is_the_matrix(RWKV7)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"rwkv7.{form}", drawn(RWKV7), 4)


def test_a_layers_projection_becomes_a_decay_above_e_to_the_minus_square_root_of_one_over_e() -> None:
    alpha = squash_decay(torch.tensor([-20.0, 0.0, 20.0]).double()).exp()
    assert alpha[0] > 0.999999 and abs(alpha[1] - 0.7384) < 1e-4 and abs(alpha[2] - 0.5452) < 1e-4
