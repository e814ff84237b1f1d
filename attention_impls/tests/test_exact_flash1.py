"""softmax.flash1: keys outside, queries inside, two numbers a row kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attention_impls import catalogue
from attention_impls.mask import Mask, full_mask
from attention_impls.tests.exact_steps import MASKS, answer, drawn, has_torchs_gradients, is_softmax, products, sizes
from attention_impls.variants.exact.flash1 import _by_keys

BLOCKS = (1, 4, 128)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("block", BLOCKS)
def test_value_and_log_sum_exp_are_those_summed_by_hand(block: int, mask: str) -> None:
    is_softmax(f"flash1:block-{block}", drawn(mask))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("block", BLOCKS)
def test_gradients_are_those_of_torchs_attention(block: int, mask: str) -> None:
    has_torchs_gradients(f"flash1:block-{block}", drawn(mask))


@pytest.mark.parametrize("mask", ["full", "aligned", "early", "one_key"])
@pytest.mark.parametrize(
    "wanted", [(True, True, True), (True, False, False), (False, True, False), (False, False, True)]
)
def test_gradients_of_output_and_log_sum_exp_pass_gradcheck(mask: str, wanted: tuple[bool, ...]) -> None:
    call = drawn(mask, heads=2, kv_heads=1, d=2, e=2)
    rows = torch.ones(call.q.shape[2], dtype=torch.bool) if call.mask.full else call.mask.visible()[0, 0].any(-1)

    def kernel(q, k, v):
        out, lse = answer("flash1:block-4", replace(call, q=q, k=k, v=v))
        return out, lse[:, :, rows]

    leaves = [t.detach().requires_grad_(w) for t, w in zip((call.q, call.k, call.v), wanted, strict=True)]
    assert torch.autograd.gradcheck(kernel, leaves, fast_mode=True)


def test_all_queries_meet_a_block_of_keys_before_the_next_block_is_touched() -> None:
    plan = _by_keys(Mask(12, 12, causal=True), 4)
    assert [(b.keys.start, b.rows.start) for b in plan] == [(0, 0), (0, 4), (0, 8), (4, 4), (4, 8), (8, 8)]
    assert [b.visible is None for b in plan] == [False, True, True, False, True, False]


def test_no_score_outlives_its_block_and_two_numbers_a_row_are_kept() -> None:
    call, shapes = drawn(full_mask(64, 64), heads=1, kv_heads=1, e=4), []

    def pack(t):
        shapes.append(tuple(t.shape))
        return t

    run = catalogue.find("softmax.flash1:block-8").inner.prepare(call, False)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run(call)
    assert sorted(shapes) == 2 * [(2, 1, 64, 1)] + 4 * [(2, 1, 64, 4)]  # m, l; q, k, v, out
    assert max(sizes("flash1:block-8", call, products)) == 2 * 8 * 8


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    call = drawn()
    (grad,) = torch.autograd.grad(answer("flash1", call).out.square().sum(), call.q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_a_block_below_one_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="option block must be at least 1"):
        catalogue.find("softmax.flash1:block-0")
