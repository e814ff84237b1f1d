from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.call import Call
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    with_parameters,
)
from attention_impls.variants.recurrent.gated_delta import GATED_DELTA, squash_decay

FORMS = ("recurrent", "chunkwise", "chunkwise:chunk-3")


def states(call: Call, b: int, g: int) -> list[np.ndarray]:
    """The state after every key, entry by entry as written in the paper."""
    k, v = call.k[b, g].numpy(), call.v[b, g].numpy()
    alpha, beta = call.parameters["decay"][b, g].exp().numpy(), call.parameters["beta"][b, g].numpy()
    state, after = np.zeros((k.shape[1], v.shape[1])), []
    for j in range(len(k)):
        key = k[j] / np.sqrt(sum(k[j] ** 2))
        state = alpha[j] * (np.eye(len(key)) - beta[j] * np.outer(key, key)) @ state + beta[j] * np.outer(key, v[j])
        after.append(state)
    return after


def recurrence(call: Call) -> torch.Tensor:
    batch, heads, rows, _ = call.q.shape
    out = np.zeros((batch, heads, rows, call.v.shape[3]))
    for b, h in np.ndindex(batch, heads):
        after = states(call, b, h // call.group)
        for i in range(rows):
            out[b, h, i] = call.scale * call.q[b, h, i].numpy() @ after[call.mask.q_start + i]
    return torch.from_numpy(out)


@pytest.mark.parametrize("axes", [{}, {"kv_heads": 2, "value_dim": 3}, {"q_len": 2, "mask": "causal:bottom_right"}])
def test_the_matrix_gives_what_the_recurrence_gives(axes: dict[str, object]) -> None:
    call = drawn(GATED_DELTA, **axes)
    torch.testing.assert_close(definition(GATED_DELTA, call), recurrence(call), rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axes", [{}, {"kv_heads": 2, "value_dim": 3}, {"q_len": 2, "mask": "causal:bottom_right"}])
def test_every_form_is_the_recurrence(form: str, axes: dict[str, object]) -> None:
    call = drawn(GATED_DELTA, **axes)
    torch.testing.assert_close(run(f"gated_delta.{form}", call), recurrence(call), rtol=0, atol=1e-13)


def test_the_oracles_faster_form_is_the_matrix() -> None:
    call = drawn(GATED_DELTA, q_len=150, kv_len=150, batch=1, mask="causal+padded:0.6")
    rows = torch.tensor([0, 63, 64, 149])
    slow = GATED_DELTA.weights(call, rows) @ call.v
    torch.testing.assert_close(GATED_DELTA.oracle(call, rows), slow, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_writing_under_a_key_again_replaces_its_value(form: str) -> None:
    """β = 1 and no decay: the state returns under a key the value written last, whatever stood there."""
    call = drawn(GATED_DELTA, batch=1, heads=1, kv_heads=1, q_len=3, kv_len=3)
    call.k.copy_(torch.tensor([[2.0, 0, 0, 0], [0, 3.0, 0, 0], [5.0, 0, 0, 0]]))
    call.q.copy_(torch.tensor([1.0, 0, 0, 0]))
    call = with_parameters(call, decay=torch.zeros(1, 1, 3).double(), beta=torch.ones(1, 1, 3).double())
    out = run(f"gated_delta.{form}", call) / call.scale
    torch.testing.assert_close(out[0, 0], call.v[0, 0][[0, 0, 2]])


@pytest.mark.parametrize("form", FORMS)
def test_orthogonal_keys_leave_plain_decayed_linear_attention(form: str) -> None:
    """Nothing is erased where keys are orthogonal: A_ij = scale · q_i·k_j β_j Π_{j<l≤i} α_l."""
    call = drawn(GATED_DELTA, batch=1, heads=1, kv_heads=1, q_len=4, kv_len=4)
    call.k.copy_(torch.eye(4))
    decay, beta = (call.parameters[n][0, 0] for n in ("decay", "beta"))
    expected = torch.zeros(4, 4).double()
    for i in range(4):
        for j in range(i + 1):
            expected[i, j] = call.scale * call.q[0, 0, i, j] * beta[j] * decay[j + 1 : i + 1].sum().exp()
    torch.testing.assert_close(run(f"gated_delta.{form}", call)[0, 0], expected @ call.v[0, 0])


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    made = implementation("gated_delta.recurrent")
    whole = drawn(GATED_DELTA, q_len=70, kv_len=70, kv_heads=2, mask=mask)
    last = whole.rows(70 - rows, 70)
    cache = made.prefill(last)
    unread = replace(last, k=last.k.clone(), v=last.v.clone())
    unread.k[:, :, : 70 - rows] = 7.0  # what the cache holds is not read again
    unread.v[:, :, : 70 - rows] = 7.0
    torch.testing.assert_close(made.resume(unread, cache).out, run(made, whole)[:, :, 70 - rows :], rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_documents_side_by_side_are_documents_apart(form: str) -> None:
    call = drawn(GATED_DELTA, q_len=11, kv_len=11, batch=1, mask="packed:3+causal")
    ids = call.mask.k_segments[0]
    apart = []
    for document in ids.unique():
        at = (ids == document).nonzero()[[0, -1]].flatten().tolist()
        part = call.rows(at[0], at[1] + 1).keys(at[0], at[1] + 1)
        alone = replace(part, mask=replace(part.mask, q_segments=None, k_segments=None))
        apart.append(run("gated_delta.recurrent", alone))
    torch.testing.assert_close(run(f"gated_delta.{form}", call), torch.cat(apart, 2), rtol=0, atol=1e-13)


def test_documents_in_pieces_are_refused_by_a_sentence() -> None:
    call = drawn(GATED_DELTA, q_len=4, kv_len=4, mask="packed:2+causal")
    pieces = torch.tensor([[0, 1, 1, 0]] * 2)
    torn = replace(call, mask=replace(call.mask, q_segments=pieces, k_segments=pieces))
    assert "one run of tokens" in implementation("gated_delta.recurrent").refuses(torn)
    assert implementation("gated_delta.recurrent").refuses(call) is None


@pytest.mark.parametrize("mask", ["full", "padded:0.5"])
def test_masks_that_are_not_causal_are_refused_by_a_sentence(mask: str) -> None:
    assert "causal only" in implementation("gated_delta.chunkwise").refuses(drawn(GATED_DELTA, mask=mask))


@pytest.mark.parametrize("form", FORMS)
def test_queries_before_the_first_key_give_zeros(form: str) -> None:
    call = drawn(GATED_DELTA, q_len=6, kv_len=3, mask="causal:bottom_right")
    out = run(f"gated_delta.{form}", call)
    assert not out[:, :, :3].any()
    torch.testing.assert_close(out, definition(GATED_DELTA, call), rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_strong_decay_neither_overflows_nor_divides_by_zero(form: str) -> None:
    call = drawn(GATED_DELTA, q_len=40, kv_len=40)
    strong = with_parameters(call, decay=call.parameters["decay"] * 0 - 200.0)
    torch.testing.assert_close(run(f"gated_delta.{form}", strong), recurrence(strong), rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"gated_delta.{form}", drawn(GATED_DELTA), 4)


def test_a_layers_projection_becomes_a_decay_between_zero_and_one() -> None:
    alpha = squash_decay(torch.tensor([-20.0, 0.0, 20.0]).double()).exp()
    assert alpha[0] > 0.999999 and 0.9 < alpha[1] < 0.97 and 0.0 < alpha[2] < 1e-6
