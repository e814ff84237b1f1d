"""softmax by tiles, by Rabe–Staats chunks and by FlexAttention: what is their own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.mask import Mask, full_mask
from attention_impls.tiling import bands, spans

OWN = ("softmax.tiles:block-8", "softmax.rabe_staats:q_chunk-8:k_chunk-16")


def drawn(i: int, j: int, heads: int = 2, kv_heads: int = 2, d: int = 4, e: int = 4, mask: Mask | None = None) -> Call:
    made = torch.Generator().manual_seed(i * 1000 + j)
    shapes = (1, heads, i, d), (1, kv_heads, j, d), (1, kv_heads, j, e)
    q, k, v = (torch.randn(s, generator=made, dtype=torch.float64, requires_grad=True) for s in shapes)
    return Call(q, k, v, mask or full_mask(i, j), 0.7)


def answer(name: str, call: Call, q, k, v):
    return catalogue.find(name).inner.prepare(call, True)(replace(call, q=q, k=k, v=v))


def by_hand(call: Call) -> tuple[list, list]:
    """out and lse of head 0, one query at a time, by the sums of the definition."""
    outs, lses = [], []
    visible = call.mask.visible()
    for i in range(call.q.shape[2]):
        seen = [j for j in range(call.k.shape[2]) if visible is None or bool(visible[0, 0, i, j])]
        scores = [call.scale * (call.q[0, 0, i] @ call.k[0, 0, j]).item() for j in seen]
        total = sum(math.exp(s) for s in scores)
        lses.append(math.log(total) if seen else -math.inf)
        rows = [math.exp(s) / total * call.v[0, 0, j].detach() for s, j in zip(scores, seen, strict=True)]
        outs.append(sum(rows, start=torch.zeros(call.v.shape[3], dtype=torch.float64)))
    return outs, lses


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("mask", [full_mask(9, 21), Mask(9, 21, causal=True, q_start=-3), Mask(9, 21, causal=True)])
def test_value_and_log_sum_exp_are_those_summed_by_hand(name: str, mask: Mask) -> None:
    call = drawn(9, 21, mask=mask, e=3)
    out, lse = answer(name, call, call.q, call.k, call.v)
    outs, lses = by_hand(call)
    assert torch.allclose(out[0, 0], torch.stack(outs), rtol=0, atol=1e-13)
    assert torch.allclose(lse[0, 0], torch.tensor(lses, dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    ("i", "j", "heads", "kv_heads", "e", "mask"),
    [
        (33, 37, 1, 1, 2, full_mask(33, 37)),
        (1, 9, 2, 1, 3, full_mask(1, 9)),
        (9, 1, 2, 2, 2, full_mask(9, 1)),
        (11, 10, 2, 1, 3, Mask(11, 10, causal=True, q_start=-2)),
        (10, 18, 2, 2, 2, Mask(10, 18, key_lengths=torch.tensor([17]), causal=True, q_start=8)),
    ],
)
def test_gradients_of_output_and_log_sum_exp_pass_gradcheck(name, i, j, heads, kv_heads, e, mask) -> None:
    call = drawn(i, j, heads, kv_heads, 2, e, mask)
    seen = mask.visible()
    rows = torch.ones(i, dtype=torch.bool) if seen is None else seen[0, 0].any(-1)

    def kernel(q, k, v):
        out, lse = answer(name, call, q, k, v)
        return out, lse[:, :, rows]

    assert torch.autograd.gradcheck(kernel, (call.q, call.k, call.v), fast_mode=True)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_gradcheck_passes_when_one_input_alone_requires_grad(name, wanted) -> None:
    call = drawn(9, 11)
    tensors = [t.detach().requires_grad_(w) for t, w in zip((call.q, call.k, call.v), wanted, strict=True)]
    assert torch.autograd.gradcheck(lambda *given: answer(name, call, *given).out, tensors, fast_mode=True)


@pytest.mark.parametrize("name", OWN)
def test_gradcheck_passes_on_non_contiguous_inputs_and_gradients(name) -> None:
    call = drawn(9, 11)
    tensors = [t.detach().mT.contiguous().mT.requires_grad_() for t in (call.q, call.k, call.v)]
    assert not tensors[0].is_contiguous()
    assert torch.autograd.gradcheck(lambda *given: answer(name, call, *given).out.mT, tensors, fast_mode=True)


@pytest.mark.parametrize("name", OWN)
def test_rows_without_keys_give_zero_minus_infinity_and_zero_gradients(name) -> None:
    call = drawn(20, 12, mask=Mask(20, 12, causal=True, q_start=-9))
    out, lse = answer(name, call, call.q, call.k, call.v)
    assert out[:, :, :9].eq(0).all() and torch.isneginf(lse[:, :, :9]).all() and lse[:, :, 9:].isfinite().all()
    grads = torch.autograd.grad((out, lse), (call.q, call.k, call.v), (torch.ones_like(out), torch.ones_like(lse)))
    assert all(g.isfinite().all() for g in grads)
    assert grads[0][:, :, :9].eq(0).all() and grads[0][:, :, 9:].ne(0).any()


@pytest.mark.parametrize("name", OWN)
def test_a_call_in_which_nobody_sees_anything_still_has_gradients_and_they_are_zero(name) -> None:
    call = drawn(5, 7, mask=Mask(5, 7, key_lengths=torch.tensor([0])))
    out, lse = answer(name, call, call.q, call.k, call.v)
    assert out.eq(0).all() and torch.isneginf(lse).all()
    grads = torch.autograd.grad(out.sum(), (call.q, call.k, call.v), allow_unused=True, materialize_grads=True)
    assert all(g.eq(0).all() for g in grads)


@pytest.mark.parametrize("name", OWN)
def test_scores_far_beyond_the_range_of_exp_do_no_harm(name) -> None:
    call = drawn(9, 21)
    out, lse = answer(name, call, call.q * 1e4, call.k, call.v)
    scores = call.q * 1e4 @ call.k.mT * call.scale
    assert torch.allclose(lse, torch.logsumexp(scores, -1), rtol=1e-12)
    assert torch.allclose(out, torch.softmax(scores, -1) @ call.v, rtol=0, atol=1e-10)


def test_a_second_derivative_of_tiles_is_refused_and_not_wrong() -> None:
    call = drawn(5, 5)
    out = answer("softmax.tiles", call, call.q, call.k, call.v).out
    (grad,) = torch.autograd.grad(out.square().sum(), call.q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def held_for_backward(name: str, n: int, e: int = 4) -> list[torch.Size]:
    """Shapes that a forward saves, by torch's own hooks."""
    call, shapes = drawn(n, n, 1, 1, e=e), []

    def pack(t):
        shapes.append(t.shape)
        return t

    run = catalogue.find(name).inner.prepare(call, False)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run(call)
    return shapes


def test_tiles_save_q_k_v_out_and_lse_alone() -> None:
    assert sorted(held_for_backward("softmax.tiles:block-8", 64)) == [(1, 1, 64)] + 4 * [(1, 1, 64, 4)]


@pytest.mark.parametrize("name", OWN)
def test_no_score_is_held_for_the_backward(name) -> None:
    assert all(math.prod(shape) <= 64 * 4 for shape in held_for_backward(name, 64))
    assert any(math.prod(shape) >= 64 * 64 for shape in held_for_backward("softmax.naive", 64))


def test_a_merge_of_chunks_keeps_numbers_a_row_and_no_values() -> None:
    held = held_for_backward("softmax.rabe_staats:q_chunk-64:k_chunk-8", 64, 32)
    assert held.count((1, 1, 64, 32)) == 1  # the sum that is divided at the end, not one for each of 8 chunks


@pytest.mark.parametrize("option", ["tiles:block-0", "rabe_staats:q_chunk-0", "rabe_staats:k_chunk--1"])
def test_a_block_below_one_is_refused_by_name(option) -> None:
    with pytest.raises(ValueError, match=r"option \w+ must be at least 1"):
        catalogue.find(f"softmax.{option}")


def test_half_precision_is_accumulated_wider_than_it_is_stored() -> None:
    """Sums of 4096 equal weights: adding in bfloat16 would stop growing at 256."""
    n = 4096
    ones = torch.ones((1, 1, n, 2), dtype=torch.bfloat16)
    call = Call(torch.zeros_like(ones[:, :, :1]), ones, ones, full_mask(1, n), 1.0)
    for name in OWN:
        out, lse = answer(name, call, call.q, call.k, call.v)
        assert out.dtype == torch.bfloat16 and out.eq(1).all()
        assert lse.item() == pytest.approx(math.log(n), abs=1e-5)


def test_spans_cover_a_length_and_bands_leave_out_what_causality_hides() -> None:
    assert spans(0, 4) == [] and spans(9, 4) == [(0, 4), (4, 8), (8, 9)]
    plan = bands(Mask(12, 12, causal=True), 4, 4)
    assert [[(t.lo, t.visible is None) for t in band.tiles] for band in plan] == [
        [(0, False)],
        [(0, True), (4, False)],
        [(0, True), (4, True), (8, False)],
    ]


def test_bands_leave_out_tiles_that_a_dense_mask_hides() -> None:
    dense = torch.zeros((1, 1, 4, 8), dtype=torch.bool)
    dense[..., 5] = True
    ((tile,),) = (band.tiles for band in bands(Mask(4, 8, dense=dense), 4, 4))
    assert (tile.lo, tile.hi) == (4, 8) and tile.visible.sum() == 4
