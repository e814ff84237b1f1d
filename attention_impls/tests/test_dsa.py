from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.tests.fla_naive import fla_naive
from attention_impls.tests.variant_steps import (
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("dense", "gathered", "gathered:rows-3")
SMALL = "dsa:k-3:index_heads-2:index_dim-5."


def drawn_small(**axes: object) -> Call:
    return drawn(catalogue.find(SMALL + "dense").variant, **axes)


def index_by_hand(call: Call, b: int, i: int, j: int) -> float:
    queries, keys, weights = (call.parameters[n].numpy() for n in ("index_q", "index_k", "index_w"))
    return sum(weights[b, i, n] * max(sum(queries[b, i, n] * keys[b, j]), 0.0) for n in range(weights.shape[2]))


@pytest.mark.parametrize(
    "axes", [{}, {"mask": "padded:0.5"}, {"mask": "packed:2+causal"}, {"q_len": 3, "mask": "full"}]
)
def test_every_element_is_softmax_over_the_keys_that_the_indexer_likes_best(axes: dict) -> None:
    call = drawn_small(kv_heads=2, **axes)
    whole = call.expanded()
    q, k = whole.q.numpy(), whole.k.numpy()
    visible = (
        np.ones((2, 1, q.shape[2], 7), bool) if call.mask.full else call.mask.visible().expand(2, 1, -1, 7).numpy()
    )
    expected = np.zeros((*q.shape[:3], 7))
    for b, i in np.ndindex(2, q.shape[2]):
        seen = [j for j in range(7) if visible[b, 0, i, j]]
        kept = sorted(seen, key=lambda j: (-np.float32(index_by_hand(call, b, i, j)), j))[:3]
        for h in range(4):
            logits = np.array([sum(q[b, h, i] * k[b, h, j]) / 2.0 for j in range(7)])
            expected[b, h, i] = softmax_loop(logits, np.isin(np.arange(7), kept))
    variant = implementation(SMALL + "dense").variant
    np.testing.assert_allclose(variant.weights(whole, torch.arange(q.shape[2])).numpy(), expected, atol=1e-14)
    for form in FORMS:
        np.testing.assert_allclose(run(SMALL + form, call).numpy(), expected @ whole.v.numpy(), atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_sparse_attention_of_flash_linear_attention_where_nothing_ties(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fla = fla_naive("dsa", monkeypatch)
    call = drawn_small(kv_heads=2, q_len=12, kv_len=12)
    call = with_parameters(call, **{n: p.abs() for n, p in call.parameters.items()})  # all products positive
    index = (call.parameters[n] for n in ("index_q", "index_k", "index_w"))
    theirs = fla.naive_dsa(*(t.transpose(1, 2) for t in (call.q, call.k, call.v)), *index, topk=3)
    torch.testing.assert_close(run(SMALL + form, call), theirs.transpose(1, 2), rtol=1e-5, atol=1e-5)  # in float32


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["full", "causal", "padded:0.5"])
def test_k_of_every_key_is_softmax(form: str, mask: str) -> None:
    call = drawn(catalogue.find("dsa:k-7.dense").variant, mask=mask, kv_heads=2)
    torch.testing.assert_close(run(f"dsa:k-7.{form}", call), definition(SOFTMAX, call))


@pytest.mark.parametrize("form", FORMS)
def test_an_indexer_that_likes_nothing_takes_the_first_keys(form: str) -> None:
    call = drawn_small()
    call = with_parameters(call, index_q=torch.zeros_like(call.parameters["index_q"]))
    first = drawn(SOFTMAX, mask="causal").keys(0, 3)
    torch.testing.assert_close(run(SMALL + form, call), definition(SOFTMAX, first))


@pytest.mark.parametrize("form", FORMS)
def test_the_indexer_gets_no_gradient(form: str) -> None:
    call = drawn_small()
    leaves = {n: p.requires_grad_() for n, p in call.parameters.items()}
    q = call.q.requires_grad_()
    found = torch.autograd.grad(run(SMALL + form, call).sum(), [q, *leaves.values()], allow_unused=True)
    assert found[0].any() and found[1:] == (None, None, None)


@pytest.mark.parametrize("form", FORMS)
def test_a_later_token_changes_nothing_before(form: str) -> None:
    call = drawn_small()
    later = {n: p.clone() for n, p in call.parameters.items()}
    for p in later.values():
        p[:, 4:] = 3.0 - p[:, 4:]
    before, after = run(SMALL + form, call), run(SMALL + form, with_parameters(call, **later))
    assert torch.equal(after[:, :, :4], before[:, :, :4]) and not torch.equal(after, before)


def test_a_mask_for_each_head_is_refused_by_a_sentence() -> None:
    assert "dense" in implementation("dsa.gathered").refuses(drawn_small(mask="dense:0.5"))
