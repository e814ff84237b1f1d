"""Sliding window: which pairs it keeps, what the band costs, and its edges."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue, inputs, oracle
from attention_impls.contract import Workload
from attention_impls.makers import patterned
from attention_impls.mask import Mask

W = Workload(batch=2, heads=4, kv_heads=2, q_len=37, kv_len=37, head_dim=4, value_dim=4, dtype="f64", mask="causal")
ALL = ("naive", "sdpa_flash", "tiles:block-8", "banded", "banded:block-5", "banded:block-1", "banded:block-64")


def drawn(name: str, **axes: object):
    subject = catalogue.find(name)
    return subject, inputs.draw(subject.variant, replace(W, **axes))  # type: ignore[arg-type]


def ran(subject, call):
    return subject.inner.prepare(call, subject.inner.support.lse != "no")(call)


@pytest.mark.parametrize(
    ("n", "window", "mask", "pairs"),
    [
        (6, 3, "causal", 1 + 2 + 3 + 3 + 3 + 3),
        (6, 3, "full", 3 + 4 + 5 + 5 + 4 + 3),
        (6, 1, "full", 6),
        (6, 1, "causal", 6),
        (6, 6, "causal", 21),
        (6, 6, "full", 36),
        (6, 5, "full", 36 - 2),
    ],
)
def test_the_window_keeps_the_pairs_counted_by_hand(n: int, window: int, mask: str, pairs: int) -> None:
    subject, call = drawn(f"sliding_window:window-{window}.naive", q_len=n, kv_len=n, mask=mask, batch=1)
    assert subject.variant.pattern is not None
    assert patterned(call, subject.variant.pattern).mask.pairs(1, 1) == pairs
    assert int((subject.variant.weights(call.expanded(), torch.arange(n)) > 0).sum()) == 4 * pairs


def by_loop(call, window: int) -> tuple[np.ndarray, np.ndarray]:
    """out and lse by the stated convention: |i - j| < window in absolute positions, under the call's own mask."""
    q, k, v = (t.numpy() for t in (call.q, call.k, call.v))
    own = call.mask.visible()
    out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -np.inf)
    for b, h, i in np.ndindex(*q.shape[:3]):
        g, position = h * k.shape[1] // q.shape[1], call.mask.q_start + i
        columns = [
            j
            for j in range(k.shape[2])
            if abs(position - j) <= window - 1 and (own is None or own[b % len(own), h % own.shape[1], i, j])
        ]
        weights = np.exp([q[b, h, i] @ k[b, g, j] / math.sqrt(q.shape[3]) for j in columns])
        if columns:
            out[b, h, i] = weights @ v[b, g, columns] / weights.sum()
            lse[b, h, i] = np.log(weights.sum())
    return out, lse


CALLS = [
    {"mask": "causal"},
    {"mask": "full"},
    {"q_len": 33, "kv_len": 33, "mask": "causal+padded:0.5"},
    {"q_len": 9, "mask": "causal:bottom_right"},
    {"q_len": 37, "kv_len": 20, "mask": "full"},
    {"q_len": 37, "kv_len": 9, "mask": "causal"},
    {"q_len": 1, "kv_len": 1, "mask": "full"},
    {"mask": "packed:3+causal"},
]


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("kernel", ALL)
def test_every_form_agrees_with_a_numpy_loop(kernel: str, axes: dict) -> None:
    subject, call = drawn(f"sliding_window:window-5.{kernel}", **axes)
    out, lse = by_loop(call, 5)
    found = ran(subject, call)
    np.testing.assert_allclose(found.out.numpy(), out, rtol=0, atol=1e-12)
    if found.lse is not None:
        np.testing.assert_allclose(found.lse.numpy(), lse, rtol=0, atol=1e-12)


def test_the_definition_agrees_with_the_numpy_loop() -> None:
    for axes in CALLS:
        subject, call = drawn("sliding_window:window-5.naive", **axes)
        right = oracle.answer(subject.variant, call, torch.arange(call.q.shape[2]))
        out, lse = by_loop(call, 5)
        np.testing.assert_allclose(right.out.numpy(), out, rtol=0, atol=1e-13)
        np.testing.assert_allclose(right.lse.numpy(), lse, rtol=0, atol=1e-13)


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_a_window_as_long_as_the_sequence_is_softmax_attention(mask: str) -> None:
    subject, call = drawn("sliding_window:window-37.banded", mask=mask)
    softmax = oracle.answer(catalogue.find("softmax.naive").variant, call, torch.arange(37)).out
    assert torch.allclose(ran(subject, call).out, softmax, rtol=0, atol=1e-13)
    narrower, _ = drawn("sliding_window:window-36.banded")
    assert not torch.allclose(ran(narrower, call).out, softmax, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_gradients_of_the_band_pass_gradcheck_and_reach_only_its_keys(mask: str) -> None:
    subject, call = drawn("sliding_window:window-3.banded:block-4", q_len=11, kv_len=11, batch=1, heads=2, mask=mask)
    call = call.map(lambda t: t.requires_grad_())
    run = subject.inner.prepare(call, True)
    assert torch.autograd.gradcheck(
        lambda q, k, v: tuple(run(replace(call, q=q, k=k, v=v))), (call.q, call.k, call.v), fast_mode=True
    )
    (dk,) = torch.autograd.grad(run(call).out[:, :, 5].sum(), call.v)
    reached = [j for j in range(11) if dk[0, 0, j].abs().max() > 0]
    assert reached == ([3, 4, 5] if mask == "causal" else [3, 4, 5, 6, 7])


def test_positions_are_absolute_when_a_call_is_cut() -> None:
    subject, call = drawn("sliding_window:window-5.banded", mask="causal")
    whole = ran(subject, call).out[:, :, 20:30]
    part = call.rows(20, 30).keys(10, 37)
    assert torch.allclose(ran(subject, part).out, whole, rtol=0, atol=1e-13)


def test_starts_that_differ_by_sequence_are_taken() -> None:
    subject, call = drawn("sliding_window:window-5.banded:block-2", q_len=3)
    call = replace(call, mask=Mask(3, 37, causal=True, q_start=torch.tensor([4, 30])))
    right = oracle.answer(subject.variant, call, torch.arange(3))
    found = ran(subject, call)
    assert torch.allclose(found.out, right.out, rtol=0, atol=1e-13)
    assert torch.allclose(found.lse, right.lse, rtol=0, atol=1e-13)


def test_what_the_band_holds_grows_with_the_length_and_not_with_its_square() -> None:
    def held(n: int) -> int:
        subject, call = drawn("sliding_window:window-16.banded:block-16", q_len=n, kv_len=n, batch=1, kv_heads=4)
        call, sizes = call.map(lambda t: t.requires_grad_()), []
        run = subject.inner.prepare(call, False)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            run(call)
        return sum(sizes)

    small, large = held(256), held(512)
    assert large / small == pytest.approx(2.0, rel=0.05)
    assert large < 4 * 512 * 512  # the rows of the softmax alone, were they whole


@pytest.mark.parametrize("name", ["sliding_window:window-0.naive", "sliding_window.banded:block-0"])
def test_sizes_below_one_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        catalogue.find(name)


def test_options_of_a_kernel_under_the_window_keep_the_window() -> None:
    subject = catalogue.find("sliding_window:window-3.tiles:block-8")
    assert str(subject.name) == "sliding_window:window-3.tiles:block-8"
    assert subject.bare.variant is subject.variant and subject.variant.name == "sliding_window"
