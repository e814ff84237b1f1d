from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls.call import merge_by_lse
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)
from attention_impls.variants.positional.alibi import ALIBI, slopes
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("alibi.naive", "alibi.sdpa_flash")


def test_eight_heads_have_the_papers_slopes() -> None:
    assert slopes(8).tolist() == [2.0**-h for h in range(1, 9)]


def test_twelve_heads_interleave_the_slopes_of_sixteen() -> None:
    between = [0.7071, 0.3536, 0.1768, 0.0884]
    np.testing.assert_allclose(slopes(12).numpy(), [2.0**-h for h in range(1, 9)] + between, atol=5e-5)


def test_one_head_and_three_heads() -> None:
    assert slopes(1).tolist() == [2.0**-8]
    assert slopes(3).tolist() == [2.0**-4, 2.0**-8, 2.0**-2]


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_every_element_is_softmax_of_logit_minus_slope_times_distance(mask: str) -> None:
    call = drawn(ALIBI, mask=mask)
    q, k, m = call.q.numpy(), call.k.numpy(), [0.25, 0.0625, 0.015625, 0.00390625]
    expected = np.zeros((2, 4, 7, 7))
    for b, h, i in np.ndindex(2, 4, 7):
        logits = np.array([sum(q[b, h, i] * k[b, h, j]) / 2.0 - m[h] * abs(i - j) for j in range(7)])
        seen = np.array([mask == "full" or j <= i for j in range(7)])
        expected[b, h, i] = softmax_loop(logits, seen)
    np.testing.assert_allclose(ALIBI.weights(call, torch.arange(7)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_slopes_of_zero_give_softmax(name: str) -> None:
    call = drawn(ALIBI, mask="full")
    flat = with_parameters(call, slopes=torch.zeros(4))
    torch.testing.assert_close(run(name, flat), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", FORMS)
def test_the_last_row_of_a_whole_is_the_one_query_at_its_end(name: str) -> None:
    whole = drawn(ALIBI, q_len=9, kv_len=9)
    torch.testing.assert_close(run(name, whole.rows(8, 9)), run(name, whole)[:, :, 8:])


@pytest.mark.parametrize("name", FORMS)
def test_two_halves_of_the_keys_join_to_the_whole(name: str) -> None:
    whole, made = drawn(ALIBI, mask="full"), implementation(name)
    parts = [made.prepare(part, True)(part) for part in (whole.keys(0, 3), whole.keys(3, 7))]
    joined, _ = merge_by_lse([p.out for p in parts], [p.lse for p in parts])
    torch.testing.assert_close(joined, run(name, whole))


@pytest.mark.parametrize("name", FORMS)
def test_a_head_alone_keeps_its_slope(name: str) -> None:
    whole = drawn(ALIBI)
    torch.testing.assert_close(run(name, whole.heads(2, 3)), run(name, whole)[:, 2:3])


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(ALIBI), 4)


def test_the_fused_kernel_gives_the_log_sum_exp_of_the_biased_logits() -> None:
    call = drawn(ALIBI, mask="padded:0.3")
    lse = implementation("alibi.sdpa_flash").prepare(call, True)(call).lse
    torch.testing.assert_close(lse, ALIBI.lse(call, torch.arange(7)))


def test_half_precision_keeps_far_keys_apart() -> None:
    """A query 3000 tokens from its keys: in bfloat16 the biases themselves are rounded by up to 4."""
    call = drawn(ALIBI, q_len=3000, kv_len=3000, batch=1, heads=1, kv_heads=1, mask="full").rows(2999, 3000).keys(0, 9)
    steep = with_parameters(call, slopes=torch.tensor([0.5]))
    right = definition(ALIBI, steep)
    half = steep.map(torch.Tensor.bfloat16)
    torch.testing.assert_close(run("alibi.naive", half).double(), right, rtol=0.03, atol=0.02)
