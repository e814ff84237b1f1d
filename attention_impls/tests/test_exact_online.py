"""softmax.online and the sums that its kin share."""

from __future__ import annotations

import math

import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.mask import Mask, full_mask
from attention_impls.running import absorb, closed, nothing
from attention_impls.tests.exact_steps import MASKS, answer, drawn, has_torchs_gradients, is_softmax, products, sizes

BLOCKS = (1, 4, 64)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("block", BLOCKS)
def test_value_and_log_sum_exp_are_those_summed_by_hand(block: int, mask: str) -> None:
    is_softmax(f"online:block-{block}", drawn(mask))


@pytest.mark.parametrize("mask", ["full", "aligned", "early", "packed", "lengths"])
@pytest.mark.parametrize("block", BLOCKS)
def test_gradients_are_those_of_torchs_attention(block: int, mask: str) -> None:
    has_torchs_gradients(f"online:block-{block}", drawn(mask))


def test_each_step_is_the_recurrence_of_the_paper_by_hand() -> None:
    """Scores 1, 3, 2 with values 10, 20, 30, one key at a time: m = 1, 3, 3 and d = 1, e^-2 + 1, e^-2 + 1 + e^-1."""
    sums = nothing(torch.zeros(1, 2, dtype=torch.float64), 1)
    steps = [
        (1.0, 10.0, 1.0, 1.0),
        (3.0, 20.0, 3.0, math.exp(-2) + 1),
        (2.0, 30.0, 3.0, math.exp(-2) + 1 + math.exp(-1)),
    ]
    for score, value, top, total in steps:
        sums = absorb(sums, torch.tensor([[score]], dtype=torch.float64), torch.tensor([[value]], dtype=torch.float64))
        assert sums.anchor.item() == top and sums.total.item() == pytest.approx(total, abs=1e-15)
    out, lse = closed(sums)
    assert out.item() == pytest.approx(
        (10 * math.exp(1) + 20 * math.exp(3) + 30 * math.exp(2)) / sum(map(math.exp, (1, 3, 2)))
    )
    assert lse.item() == pytest.approx(math.log(sum(map(math.exp, (1, 3, 2)))))


def test_one_pass_makes_two_products_a_block_and_never_holds_a_row_of_weights() -> None:
    call = drawn(full_mask(40, 96))
    made = sizes("online:block-8", call, products)
    assert len(made) == 2 * 96 // 8
    assert max(sizes("online:block-8", call)) <= 2 * 4 * 40 * 8 < 2 * 4 * 40 * 96


def test_blocks_that_nobody_sees_are_not_computed() -> None:
    assert len(sizes("online:block-8", drawn(Mask(16, 64, causal=True)), products)) == 2 * 2  # keys 0 … 15 alone


def test_scores_far_beyond_the_range_of_exp_do_no_harm() -> None:
    call = drawn("full", kv_heads=4)
    scores = call.q.detach() * 1e4 @ call.k.detach().mT * call.scale
    out, lse = answer("online:block-4", Call(call.q * 1e4, call.k, call.v, call.mask, call.scale))
    assert torch.allclose(lse, torch.logsumexp(scores, -1), rtol=1e-12)
    assert torch.allclose(out, torch.softmax(scores, -1) @ call.v, rtol=0, atol=1e-10)


def test_half_precision_is_summed_wider_than_it_is_stored() -> None:
    """4096 equal weights: a sum in bfloat16 would stop growing at 256."""
    ones = torch.ones((1, 1, 4096, 2), dtype=torch.bfloat16)
    out, lse = answer("online", Call(torch.zeros_like(ones[:, :, :1]), ones, ones, full_mask(1, 4096), 1.0))
    assert out.dtype == torch.bfloat16 and out.eq(1).all() and lse.item() == pytest.approx(math.log(4096), abs=1e-5)


def test_a_call_in_which_nobody_sees_anything_has_zero_gradients() -> None:
    call = drawn(Mask(5, 7, key_lengths=torch.tensor([0, 0])))
    out, lse = answer("online", call)
    assert out.eq(0).all() and torch.isneginf(lse).all()
    grads = torch.autograd.grad(out.sum(), (call.q, call.k, call.v), allow_unused=True, materialize_grads=True)
    assert all(g.eq(0).all() for g in grads)


def test_it_is_the_chunked_attention_of_memory_efficient_attention_pytorch() -> None:
    theirs = pytest.importorskip("memory_efficient_attention_pytorch.memory_efficient_attention")
    call = drawn(Mask(16, 16, causal=True), kv_heads=4, e=4)
    q, k, v = (t.detach() for t in (call.q, call.k, call.v))
    wanted = theirs.memory_efficient_attention(q * call.scale * 2, k, v, causal=True, q_bucket_size=4, k_bucket_size=8)
    found = answer("online:block-4", call).out  # theirs multiplies by D^-1/2 = 1/2 and adds 1e-8 to the sum
    torch.testing.assert_close(found.detach(), wanted, rtol=0, atol=1e-7)


def test_a_block_below_one_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="option block must be at least 1"):
        catalogue.find("softmax.online:block-0")
