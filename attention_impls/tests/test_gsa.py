from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, implementation, run, with_parameters

NAME = "gsa:slots-3"
GSA = implementation(f"{NAME}.recurrent").variant


def loop(call):
    """Slots kept one by one as the paper writes them."""
    batch, heads, rows, size = call.q.shape
    out = np.zeros((batch, heads, rows, call.v.shape[3]))
    for b, h in np.ndindex(batch, heads):
        g, after = h // call.group, []
        k, v, alpha = (x[b, g].numpy() for x in (call.k, call.v, call.parameters["decay"].exp()))
        keys, values = np.zeros((alpha.shape[1], size)), np.zeros((alpha.shape[1], v.shape[1]))
        for j in range(len(k)):
            keys = alpha[j][:, None] * keys + np.outer(1 - alpha[j], k[j])
            values = alpha[j][:, None] * values + np.outer(1 - alpha[j], v[j])
            after.append((keys, values))
        for i in range(rows):
            keys, values = after[call.mask.q_start + i]
            power = np.exp(call.scale * keys @ call.q[b, h, i].numpy())
            out[b, h, i] = power / power.sum() @ values
    return torch.from_numpy(out)


@pytest.mark.parametrize("axes", steps.AXES)
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object]) -> None:
    call = drawn(GSA, **axes)
    for out in (steps.definition(GSA, call), *(run(f"{NAME}.{form}", call) for form in steps.FORMS)):
        torch.testing.assert_close(out, loop(call), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
def test_it_is_gated_slot_attention_against_fla(form: str) -> None:
    call = drawn(GSA, q_len=40, kv_len=40)
    decay = call.parameters["decay"]
    inputs = [steps.tokens_first(t) for t in (call.q, call.k, call.v, 1 - decay.exp(), decay)]
    theirs = steps.fla_naive("gsa/naive").naive_recurrent_gsa(*inputs)[0]
    torch.testing.assert_close(steps.tokens_first(run(f"{NAME}.{form}", call)), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", steps.FORMS)
def test_shares_of_a_softmax_over_keys_are_abc(form: str) -> None:
    """exp(z_{j−1} − z_j) is what softmax over the keys so far leaves of those before key j."""
    abc = implementation("abc:slots-3.blocked").variant
    theirs = drawn(abc)
    total = theirs.parameters["control"].logcumsumexp(2)
    decay = torch.cat([torch.full_like(total[:, :, :1], -200.0), total[:, :, :-1] - total[:, :, 1:]], 2)
    call = replace(theirs, parameters={"decay": decay}, axes={"decay": "B G J S"})
    torch.testing.assert_close(run(f"{NAME}.{form}", call), run("abc:slots-3.blocked", theirs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
def test_with_one_slot_queries_change_nothing(form: str) -> None:
    call = drawn(implementation("gsa:slots-1.recurrent").variant)
    out = run(f"gsa:slots-1.{form}", call)
    torch.testing.assert_close(run(f"gsa:slots-1.{form}", replace(call, q=call.q * 9)), out)


@pytest.mark.parametrize("form", steps.FORMS)
def test_strong_decay_leaves_the_own_value(form: str) -> None:
    call = drawn(GSA, q_len=40, kv_len=40)
    call = with_parameters(call, decay=call.parameters["decay"] * 0 - 200.0)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), call.v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("slots", [0, -1])
def test_slots_below_one_are_refused_by_a_sentence(slots: int) -> None:
    with pytest.raises(ValueError, match="slots must be at least 1"):
        implementation(f"gsa:slots-{slots}.recurrent")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(GSA, mask, rows, NAME)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(GSA, NAME)
    steps.early_queries_give_zeros(GSA, NAME)
    steps.oracle_is_the_matrix(GSA)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"{NAME}.{form}", drawn(GSA), 4)
