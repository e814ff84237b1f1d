"""softmax.varlen and softmax.varlen_flash: documents of different lengths, each on its own."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attention_impls import catalogue
from attention_impls.mask import Mask
from attention_impls.tests.exact_steps import (
    MASKS,
    SEGMENTS,
    answer,
    drawn,
    has_torchs_gradients,
    is_softmax,
    products,
    sizes,
)

FORMS = ("varlen", "varlen_flash")


def call_of(mask: str | Mask, form: str):
    return drawn(mask, e=4 if form == "varlen_flash" else 3)  # the fused kernel needs E = D


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_value_and_log_sum_exp_are_those_summed_by_hand(form: str, mask: str) -> None:
    is_softmax(form, call_of(mask, form))


@pytest.mark.parametrize("mask", ["full", "aligned", "early", "packed", "lengths"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_torchs_attention(form: str, mask: str) -> None:
    has_torchs_gradients(form, call_of(mask, form))


@pytest.mark.parametrize("form", FORMS)
def test_it_is_torchs_attention_of_every_document_alone(form: str) -> None:
    """Documents of 4, 1 and 8 tokens in the first sequence, of 7, 3 and 3 in the second."""
    call = call_of("packed", form)
    for b, ends in enumerate(([0, 4, 5, 13], [0, 7, 10, 13])):
        for lo, hi in pairwise(ends):
            own = [t[b : b + 1, :, lo:hi].detach() for t in (call.q, call.k, call.v)]
            wanted = scaled_dot_product_attention(*own, is_causal=True, scale=call.scale, enable_gqa=True)
            found = answer(form, call).out[b : b + 1, :, lo:hi]
            torch.testing.assert_close(found.detach(), wanted, rtol=0, atol=1e-13)


def test_scores_are_made_inside_documents_only() -> None:
    heads, squares = 4, 4**2 + 1 + 8**2 + 7**2 + 3**2 + 3**2
    made = sizes("varlen", drawn("packed"), products)
    assert sum(made[::2]) == heads * squares and sum(made[1::2]) == heads * 26 * 3


def test_padding_is_cut_off() -> None:
    made = sizes("varlen", drawn(Mask(9, 21, key_lengths=torch.tensor([5, 17]))), products)
    assert sum(made[::2]) == 4 * 9 * (5 + 17)


@pytest.mark.parametrize("form", FORMS)
def test_a_document_that_has_queries_and_no_keys_gives_zeros(form: str) -> None:
    call = call_of(
        Mask(4, 6, q_segments=torch.tensor([[5, 5, 7, 7]]), k_segments=torch.tensor([[5, 5, 5, 6, 6, 6]])), form
    )
    out, lse = answer(form, call)
    assert out[:, :, 2:].eq(0).all() and torch.isneginf(lse[:, :, 2:]).all() and lse[:, :, :2].isfinite().all()
    is_softmax(form, call)
    grads = torch.autograd.grad(out.sum(), (call.q, call.k, call.v))
    assert all(g.isfinite().all() for g in grads) and grads[0][:, :, 2:].eq(0).all() and grads[2][:, :, 3:].eq(0).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_document_whose_tokens_lie_apart_is_refused_by_a_sentence(form: str) -> None:
    apart = torch.tensor([[0, 0, 1, 1, 0]])
    call = drawn(Mask(5, 5, q_segments=apart, k_segments=apart), e=4)
    assert "side by side" in catalogue.find(f"softmax.{form}").inner.refuses(call)


def test_segments_of_the_shared_masks_are_runs() -> None:
    assert (SEGMENTS.diff() >= 0).all()
