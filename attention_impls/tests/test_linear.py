"""Linear attention: its definition, its three forms, its edges."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue, inputs, oracle
from attention_impls.call import Call
from attention_impls.contract import Workload
from attention_impls.mask import Mask

W = Workload(batch=2, heads=4, kv_heads=2, q_len=9, kv_len=13, head_dim=3, value_dim=2, dtype="f64", mask="dense:0.4")
CAUSAL = ("quadratic", "chunked", "chunked:chunk-4", "chunked:chunk-1")
VARIANT = catalogue.find("linear.quadratic").variant


def drawn(**axes: object) -> Call:
    return inputs.draw(VARIANT, replace(W, **axes))  # type: ignore[arg-type]


def ran(kernel: str, call: Call):
    return catalogue.find(f"linear.{kernel}").inner.prepare(call, True)(call)


def phi(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x + 1, np.exp(x))


def by_loop(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """out and the logarithm of the denominator, one query at a time."""
    q, k, v = (t.numpy() for t in (call.q, call.k, call.v))
    visible = call.mask.visible()
    out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -np.inf)
    for b, h, i in np.ndindex(*q.shape[:3]):
        g = h * k.shape[1] // q.shape[1]
        seen = [
            j for j in range(k.shape[2]) if visible is None or visible[b % visible.shape[0], h % visible.shape[1], i, j]
        ]
        similar = [phi(q[b, h, i]) @ phi(k[b, g, j]) for j in seen]
        if seen:
            out[b, h, i] = sum(s * v[b, g, j] for s, j in zip(similar, seen, strict=True)) / sum(similar)
            lse[b, h, i] = math.log(sum(similar))
    return out, lse


def agrees(found, call: Call) -> None:
    out, lse = by_loop(call)
    np.testing.assert_allclose(found.out.detach().numpy(), out, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.lse.detach().numpy(), lse, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mask", ["full", "causal", "causal:bottom_right", "padded:0.5", "dense:0.4", "dense:0.05"])
def test_the_definition_and_the_quadratic_form_agree_with_a_numpy_loop(mask: str) -> None:
    call = drawn(mask=mask)
    agrees(oracle.answer(VARIANT, call, torch.arange(9)), call)
    agrees(ran("quadratic", call), call)


@pytest.mark.parametrize("axes", [{"mask": "full"}, {"mask": "padded:0.5"}, {"mask": "full", "q_len": 1, "kv_len": 1}])
def test_the_parallel_form_agrees_with_the_loop(axes: dict) -> None:
    call = drawn(**axes)
    agrees(ran("parallel", call), call)


@pytest.mark.parametrize("kernel", CAUSAL)
@pytest.mark.parametrize(
    "axes",
    [
        {"mask": "causal", "q_len": 37, "kv_len": 37},
        {"mask": "causal", "q_len": 33, "kv_len": 9},
        {"mask": "causal:bottom_right"},
        {"mask": "causal:bottom_right", "q_len": 13, "kv_len": 4},
        {"mask": "causal+padded:0.5"},
    ],
)
def test_the_chunked_form_agrees_with_the_loop_from_any_start(kernel: str, axes: dict) -> None:
    call = drawn(**axes)
    agrees(ran(kernel, call), call)


def test_two_keys_worked_by_hand() -> None:
    """φ(0) = 1, φ(1) = 2, φ(-ln 2) = 1/2: similarities 2 and 1/2, weights 4/5 and 1/5."""
    k = torch.tensor([1.0, -math.log(2.0)], dtype=torch.float64).view(1, 1, 2, 1)
    v = torch.tensor([10.0, 20.0], dtype=torch.float64).view(1, 1, 2, 1)
    call = Call(torch.zeros((1, 1, 1, 1), dtype=torch.float64), k, v, Mask(1, 2), 1.0)
    for kernel in ("quadratic", "parallel"):
        found = ran(kernel, call)
        assert found.out.item() == pytest.approx(12.0, abs=1e-14)
        assert found.lse.item() == pytest.approx(math.log(2.5), abs=1e-14)


def test_with_one_visible_key_it_is_softmax_attention() -> None:
    call = drawn(kv_len=1, mask="full")
    for kernel in ("quadratic", "parallel"):
        assert torch.allclose(ran(kernel, call).out, call.v.repeat_interleave(2, 1).expand(-1, -1, 9, -1), atol=1e-14)


@pytest.mark.parametrize(
    ("kernel", "mask"),
    [
        ("quadratic", Mask(9, 13, causal=True, q_start=-4)),
        ("chunked:chunk-4", Mask(9, 13, causal=True, q_start=-4)),
        ("parallel", Mask(9, 13, key_lengths=torch.tensor([0, 5]))),
    ],
)
def test_queries_without_keys_give_zeros_minus_infinity_and_finite_zero_gradients(kernel: str, mask: Mask) -> None:
    call = replace(drawn(mask="full"), mask=mask).map(lambda t: t.requires_grad_())
    found = ran(kernel, call)
    agrees(found, call.map(torch.Tensor.detach))
    seen = mask.visible().any(-1).expand(2, 4, 9)
    tensors = (call.q, call.k, call.v)
    upstream = torch.ones_like(found.out), torch.ones_like(found.lse)
    grads = torch.autograd.grad((found.out, found.lse), tensors, upstream)
    assert not seen.all() and all(g.isfinite().all() for g in grads)
    assert grads[0][~seen].eq(0).all() and grads[0][seen].ne(0).any()


@pytest.mark.parametrize(
    ("kernel", "mask"), [("quadratic", "causal"), ("chunked:chunk-4", "causal"), ("parallel", "full")]
)
def test_gradients_of_output_and_log_sum_exp_pass_gradcheck(kernel: str, mask: str) -> None:
    call = drawn(batch=1, heads=2, kv_heads=1, q_len=11, kv_len=11, mask=mask).map(lambda t: t.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda q, k, v: tuple(ran(kernel, replace(call, q=q, k=k, v=v))), (call.q, call.k, call.v), fast_mode=True
    )


def test_features_of_large_negative_numbers_do_not_cancel_to_zero() -> None:
    """elu(x) + 1 in float32 is 0 or one rounding step at x = -20; e^-20 has seven digits."""
    k = torch.full((1, 1, 1, 1), -20.0)
    found = ran("quadratic", Call(k, k, torch.ones_like(k), Mask(1, 1), 1.0))
    assert found.lse.item() == pytest.approx(-40.0, rel=1e-6) and found.out.item() == 1.0


@pytest.mark.parametrize("kernel", ["quadratic", "parallel"])
def test_float16_sums_do_not_overflow(kernel: str) -> None:
    """1024 similarities of 64 features of 2 each add to 262144, beyond float16's 65504."""
    ones = torch.ones((1, 1, 1024, 64), dtype=torch.float16)
    out, lse = ran(kernel, Call(ones, ones, ones, Mask(1024, 1024), 1.0))
    assert out.dtype == torch.float16 and out.eq(1).all()
    assert torch.allclose(lse, torch.tensor(math.log(1024 * 64 * 4)), atol=1e-5)


def test_a_scale_other_than_one_is_refused_for_the_mechanism_has_none() -> None:
    call = drawn(mask="full")
    assert call.scale == 1.0
    for name in catalogue.implementations("linear"):
        inner = catalogue.find(name).inner
        assert "no scale of logits" in (inner.refuses(replace(call, scale=0.5)) or "")


def test_forms_refuse_the_masks_they_cannot_be_told() -> None:
    forms = {k: catalogue.find(f"linear.{k}").inner for k in ("quadratic", "parallel", "chunked")}
    assert forms["parallel"].refuses(drawn(mask="causal")) == "cannot be told a causal mask"
    assert forms["chunked"].refuses(drawn(mask="dense:0.4")) == "cannot be told a dense mask"
    assert forms["quadratic"].refuses(drawn(mask="dense:0.4")) is None


def test_what_the_chunked_form_holds_grows_with_the_length_and_not_with_its_square() -> None:
    def held(n: int) -> int:
        call, sizes = drawn(q_len=n, kv_len=n, mask="causal", kv_heads=4).map(lambda t: t.requires_grad_()), []
        run = catalogue.find("linear.chunked:chunk-16").inner.prepare(call, False)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            run(call)
        return sum(sizes)

    assert held(512) / held(256) == pytest.approx(2.0, rel=0.05)
