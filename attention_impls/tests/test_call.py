"""Parts of a call, and the algebra of rows, against whole calls and plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, merge_by_lse, repeat_heads, softmax_rows
from attention_impls.inputs import generator
from attention_impls.mask import Mask, full_mask

SIZES = {"B": 2, "H": 6, "G": 3, "I": 5, "J": 7, "D": 4, "E": 3, "F": 8}
AXES = {"slopes": "H", "gate": "B G J", "bias": "H I J", "features": "F D", "shared": "B I"}


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(f"call/{shape}"), dtype=torch.float64)


def called(**changes: object) -> Call:
    def shaped(axes: str) -> Tensor:
        return normal(*(SIZES[letter] for letter in axes.split()))

    whole = Call(
        q=shaped("B H I D"),
        k=shaped("B G J D"),
        v=shaped("B G J E"),
        mask=full_mask(SIZES["I"], SIZES["J"]),
        scale=0.5,
        parameters={name: shaped(axes) for name, axes in AXES.items()},
        axes=AXES,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def cut(axes: str, letter: str, lo: int, hi: int, tensor: Tensor) -> Tensor:
    """tensor[lo:hi] on the axis called `letter`, by plain indexing."""
    index = tuple(slice(lo, hi) if name == letter else slice(None) for name in axes.split())
    return tensor[index]


@pytest.mark.parametrize(("method", "letter"), [("rows", "I"), ("keys", "J")])
def test_parameters_are_sliced_by_their_axes(method: str, letter: str) -> None:
    whole = called()
    part = getattr(whole, method)(2, 4)
    for name, axes in AXES.items():
        assert torch.equal(part.parameters[name], cut(axes, letter, 2, 4, whole.parameters[name])), name
    assert torch.equal(part.q, cut("B H I D", letter, 2, 4, whole.q))
    assert torch.equal(part.k, cut("B G J D", letter, 2, 4, whole.k))
    assert torch.equal(part.v, cut("B G J E", letter, 2, 4, whole.v))


@pytest.mark.parametrize(("lo", "hi", "first", "last"), [(0, 2, 0, 1), (2, 6, 1, 3), (3, 4, 1, 2), (5, 6, 2, 3)])
def test_heads_take_the_key_heads_that_they_read(lo: int, hi: int, first: int, last: int) -> None:
    whole = called()
    part = whole.heads(lo, hi)
    assert torch.equal(part.q, whole.q[:, lo:hi])
    assert torch.equal(part.k, whole.k[:, first:last])
    assert torch.equal(part.parameters["slopes"], whole.parameters["slopes"][lo:hi])
    assert torch.equal(part.parameters["gate"], whole.parameters["gate"][:, first:last])
    assert torch.equal(part.parameters["features"], whole.parameters["features"])


@pytest.mark.parametrize(("lo", "hi"), [(0, 3), (1, 3), (3, 6)])
def test_heads_that_cross_a_group_are_refused_with_the_numbers(lo: int, hi: int) -> None:
    with pytest.raises(ValueError, match=f"heads {lo}..{hi} cross groups of 2"):
        called().heads(lo, hi)


def test_one_sequence_keeps_its_batch_axis() -> None:
    whole = called()
    part = whole.batch(1)
    assert part.q.shape[0] == 1
    assert torch.equal(part.parameters["gate"], whole.parameters["gate"][1:2])
    assert torch.equal(part.parameters["bias"], whole.parameters["bias"])


def test_expanded_repeats_each_key_head_for_the_query_heads_that_read_it() -> None:
    whole = called()
    wide = whole.expanded()
    for head in range(SIZES["H"]):
        group = head * SIZES["G"] // SIZES["H"]
        assert torch.equal(wide.k[:, head], whole.k[:, group])
        assert torch.equal(wide.v[:, head], whole.v[:, group])
        assert torch.equal(wide.parameters["gate"][:, head], whole.parameters["gate"][:, group])
    assert wide.axes["gate"] == "B H J"
    assert wide.expanded() is wide
    assert torch.equal(repeat_heads(whole.k, SIZES["H"]), wide.k)


def test_map_leaves_whole_numbers_alone_unless_asked() -> None:
    index = torch.arange(7)
    call = called(parameters={"index": index}, axes={"index": "J"})
    assert call.map(lambda t: t * 2).parameters["index"] is index
    assert torch.equal(call.map(lambda t: t * 2, floating_only=False).parameters["index"], index * 2)
    assert torch.equal(call.map(lambda t: t * 2).q, call.q * 2)


def test_tensors_come_in_a_fixed_order() -> None:
    whole = called()
    assert [id(t) for t in whole.tensors()[:3]] == [id(whole.q), id(whole.k), id(whole.v)]
    assert [id(t) for t in whole.tensors()[3:]] == [id(whole.parameters[name]) for name in sorted(AXES)]


def test_softmax_and_lse_of_rows_are_those_of_a_loop() -> None:
    logits = normal(3, 4)
    logits[1] = -math.inf
    logits[2, 1:] = -math.inf
    for row, weights, total in zip(logits.tolist(), softmax_rows(logits), lse_rows(logits), strict=True):
        exps = [math.exp(x) for x in row]
        whole = sum(exps)
        wanted = [e / whole if whole else 0.0 for e in exps]
        assert weights.tolist() == pytest.approx(wanted, abs=1e-15)
        assert float(total) == pytest.approx(math.log(whole) if whole else -math.inf, abs=1e-15)


def test_rows_of_minus_infinity_have_zero_gradients() -> None:
    logits = torch.full((2, 3), -math.inf, dtype=torch.float64)
    logits[0] = torch.tensor([0.1, 0.2, 0.3])
    for rows in (softmax_rows, lse_rows):
        leaf = logits.clone().requires_grad_()
        out = rows(leaf)
        seen = out.masked_fill(out.isinf(), 0.0)
        (gradient,) = torch.autograd.grad(seen.square().sum(), leaf)
        assert gradient[1].tolist() == [0.0, 0.0, 0.0]
        assert gradient[0].isfinite().all()
        assert gradient[0].abs().sum() > 0


def part_of(call: Call, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    part = call.keys(lo, hi)
    logits = hide(part.q @ part.k.mT * part.scale, part.mask.visible())
    return softmax_rows(logits) @ part.v, lse_rows(logits)


@pytest.mark.parametrize("cuts", [(0, 7), (0, 3, 7), (0, 1, 2, 6, 7)])
def test_parts_merged_by_lse_are_the_whole_in_value_and_gradient(cuts: tuple[int, ...]) -> None:
    """Query rows that see no key at all, and parts in which a row sees none, are among them."""
    dense = torch.rand((2, 6, 5, 7), generator=generator("merge")) < 0.4
    dense[:, :, 2] = False
    dense[:, :, 3, :3] = False
    whole = called(mask=Mask(5, 7, dense=dense)).expanded()
    up_out, up_lse = normal(2, 6, 5, 3), normal(2, 6, 5)
    seen = dense.any(-1)

    def gradients(merged: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
        leaves = [t.clone().requires_grad_() for t in (whole.q, whole.k, whole.v)]
        call = replace(whole, q=leaves[0], k=leaves[1], v=leaves[2])
        parts = [part_of(call, lo, hi) for lo, hi in pairwise(cuts)]
        out, lse = merge_by_lse(*zip(*parts, strict=True)) if merged else part_of(call, 0, 7)
        total = (out * up_out).sum() + (lse.masked_fill(~seen, 0.0) * up_lse).sum()
        return out.detach(), lse.detach(), list(torch.autograd.grad(total, leaves))

    out, lse, found = gradients(merged=True)
    right, total, wanted = gradients(merged=False)
    torch.testing.assert_close(out, right, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(lse, total, rtol=1e-12, atol=1e-14)
    assert lse[:, :, 2].isneginf().all()
    assert not out[:, :, 2].any()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)


def test_merging_half_precision_parts_keeps_their_dtype_and_a_wide_lse() -> None:
    parts = [normal(1, 1, 2, 3).bfloat16() for _ in range(2)]
    lses = [torch.zeros(1, 1, 2, dtype=torch.bfloat16), torch.full((1, 1, 2), -math.inf, dtype=torch.bfloat16)]
    out, lse = merge_by_lse(parts, lses)
    assert out.dtype == torch.bfloat16
    assert lse.dtype == torch.float32
    assert torch.equal(out, parts[0])
