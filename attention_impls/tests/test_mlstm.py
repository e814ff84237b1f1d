from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, run, with_parameters
from attention_impls.variants.recurrent.mlstm import MLSTM, squash_decay


def loop(call):
    """Memory and normaliser as the paper writes them, without a stabiliser."""
    batch, heads, rows, size = call.q.shape
    out = np.zeros((batch, heads, rows, call.v.shape[3]))
    for b, h in np.ndindex(batch, heads):
        g, memory, weight, after = h // call.group, np.zeros((size, call.v.shape[3])), np.zeros(size), []
        for j in range(call.k.shape[2]):
            gate, forget = (call.parameters[n][b, g, j].exp().item() for n in ("input_gate", "decay"))
            key = call.k[b, g, j].numpy()
            memory = forget * memory + gate * np.outer(key, call.v[b, g, j])
            weight = forget * weight + gate * key
            after.append((memory, weight))
        for i in range(rows):
            memory, weight = after[call.mask.q_start + i]
            q = call.scale * call.q[b, h, i].numpy()
            out[b, h, i] = q @ memory / max(abs(q @ weight), 1.0)
    return torch.from_numpy(out)


@pytest.mark.parametrize("axes", steps.AXES)
@pytest.mark.parametrize("size", [0.05, 1.0, 20.0])  # rows below one, around it, and above it
def test_matrix_and_forms_are_the_recurrence_in_numpy(axes: dict[str, object], size: float) -> None:
    call = drawn(MLSTM, **axes)
    call = replace(call, q=call.q * size)
    for out in (steps.definition(MLSTM, call), *(run(f"mlstm.{form}", call) for form in steps.FORMS)):
        torch.testing.assert_close(out, loop(call), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("form", steps.FORMS)
@pytest.mark.parametrize("gate", [300.0, -300.0])
def test_large_and_small_gates_neither_overflow_nor_divide_by_zero_in_float32(form: str, gate: float) -> None:
    """e^300 has no float32: with such gates rows are means of values; with e^-300 they vanish."""
    call = drawn(MLSTM, q_len=40, kv_len=40)
    call = replace(call, q=call.q.abs(), k=call.k.abs())
    call = with_parameters(call, input_gate=call.parameters["input_gate"] + gate)
    right = steps.definition(MLSTM, call)
    found = run(f"mlstm.{form}", call.map(torch.Tensor.float))
    torch.testing.assert_close(found.double(), right, rtol=0, atol=2e-3 if gate > 0 else 1e-30)
    assert right.abs().max() > 0.1 if gate > 0 else right.any()


@pytest.mark.parametrize("form", steps.FORMS)
def test_open_gates_and_rows_that_weigh_little_are_ssd(form: str) -> None:
    call = drawn(MLSTM, kv_heads=2)
    call = replace(call, q=call.q * 1e-3)
    call = with_parameters(call, input_gate=call.parameters["input_gate"] * 0)
    gated = replace(call, parameters={"decay": call.parameters["decay"]}, axes={"decay": "B G J"})
    torch.testing.assert_close(run(f"mlstm.{form}", call), run("ssd.recurrent", gated), rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", steps.FORMS)
def test_rows_that_weigh_much_are_means_of_values(form: str) -> None:
    """Positive products and a large scale: rows of A sum to one, so that constant values come back."""
    call = drawn(MLSTM)
    call = replace(call, q=call.q.abs() * 100, k=call.k.abs(), v=torch.full_like(call.v, 2.5))
    torch.testing.assert_close(run(f"mlstm.{form}", call), call.v)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(MLSTM, mask, rows)


def test_documents_early_queries_and_the_faster_oracle() -> None:
    steps.documents_are_apart(MLSTM)
    steps.early_queries_give_zeros(MLSTM)
    steps.oracle_is_the_matrix(MLSTM)


@pytest.mark.parametrize("form", steps.FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"mlstm.{form}", drawn(MLSTM), 4)


def test_a_layers_projection_becomes_a_decay_between_zero_and_one() -> None:
    alpha = squash_decay(torch.tensor([-30.0, 0.0, 30.0]).double()).exp()
    assert 0.0 < alpha[0] < 1e-6 and 0.95 < alpha[1] < 0.96 and 0.999999 < alpha[2] <= 1.0
