"""Dense score variants: additive, dot, general, temperature, held to definitions written out in numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue, inputs, oracle
from attention_impls.call import Call
from attention_impls.contract import Variant, Workload

W = Workload(batch=2, heads=4, kv_heads=2, q_len=5, kv_len=7, head_dim=3, value_dim=2, dtype="f64", mask="dense:0.6")
NAMES = ("additive.broadcast", "dot.naive", "general.naive", "temperature.naive")


def drawn(name: str, **axes: object) -> tuple[Variant, Call]:
    variant = catalogue.find(name).variant
    return variant, inputs.draw(variant, replace(W, **axes))  # type: ignore[arg-type]


def additive(q, k, p, h, g):
    """vᵀ tanh(W [q; k] + b): Luong's concat form, its W cut in two."""
    split = np.concatenate([p["w_q"][h], p["w_k"][g]])  # [2 D, A]
    return p["score"][h] @ np.tanh(np.concatenate([q, k]) @ split + p["b"][h])


LOGITS = {
    "additive": additive,
    "dot": lambda q, k, p, h, g: sum(a * b for a, b in zip(q, k, strict=True)),
    "general": lambda q, k, p, h, g: sum(q[d] * p["w"][h][d][f] * k[f] for d in range(len(q)) for f in range(len(k))),
    "temperature": lambda q, k, p, h, g: (q @ k) / np.sqrt(len(q)) / 2.0,
}


def by_loop(variant: Variant, call: Call) -> tuple[np.ndarray, np.ndarray]:
    """out and lse, one query at a time; head h reads key/value head h * G // H."""
    q, k, v = (t.numpy() for t in (call.q, call.k, call.v))
    p = {name: value.numpy() for name, value in call.parameters.items()}
    seen = call.mask.visible().expand(*q.shape[:3], k.shape[2]).numpy()
    out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -np.inf)
    for b, h, i in np.ndindex(*q.shape[:3]):
        g = h * k.shape[1] // q.shape[1]
        columns = [j for j in range(k.shape[2]) if seen[b, h, i, j]]
        weights = [np.exp(LOGITS[variant.name](q[b, h, i], k[b, g, j], p, h, g)) for j in columns]
        if columns:
            lse[b, h, i] = np.log(sum(weights))
            out[b, h, i] = sum(w * v[b, g, j] for w, j in zip(weights, columns, strict=True)) / sum(weights)
    return out, lse


@pytest.mark.parametrize("name", NAMES)
def test_the_definition_agrees_with_a_numpy_loop_element_by_element(name: str) -> None:
    variant, call = drawn(name)
    out, lse = by_loop(variant, call)
    right = oracle.answer(variant, call, torch.arange(5))
    np.testing.assert_allclose(right.out.numpy(), out, rtol=0, atol=1e-13)
    np.testing.assert_allclose(right.lse.numpy(), lse, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", [n for v in LOGITS for n in catalogue.implementations(v)])
def test_every_implementation_agrees_with_the_numpy_loop(name: str) -> None:
    variant, call = drawn(name, value_dim=3)
    subject = catalogue.find(name)
    assert subject.inner.refuses(call) is None
    out, lse = by_loop(variant, call)
    found = subject.inner.prepare(call, True)(call)
    np.testing.assert_allclose(found.out.numpy(), out, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.lse.numpy(), lse, rtol=0, atol=1e-12)


def softmax_out(call: Call, scale: float) -> torch.Tensor:
    bare = replace(call, scale=scale, parameters={}, axes={})
    return oracle.answer(catalogue.find("softmax.naive").variant, bare, torch.arange(5)).out


def ran(name: str, call: Call) -> torch.Tensor:
    return catalogue.find(name).inner.prepare(call, False)(call).out


def test_a_temperature_of_one_is_softmax_attention() -> None:
    _, call = drawn("temperature:tau-1.naive")
    assert torch.allclose(ran("temperature:tau-1.naive", call), softmax_out(call, 3**-0.5), rtol=0, atol=1e-14)
    assert not torch.allclose(ran("temperature.naive", call), softmax_out(call, 3**-0.5), rtol=0, atol=1e-3)


def test_dot_is_softmax_with_scale_one_and_takes_a_callers_scale() -> None:
    _, call = drawn("dot.naive")
    assert call.scale == 1.0
    assert torch.allclose(ran("dot.naive", call), softmax_out(call, 1.0), rtol=0, atol=1e-14)
    assert torch.allclose(ran("dot.naive", replace(call, scale=0.3)), softmax_out(call, 0.3), rtol=0, atol=1e-14)


def test_general_with_the_identity_is_dot() -> None:
    _, call = drawn("general.naive")
    eye = replace(call, parameters={"w": torch.eye(3, dtype=torch.float64).expand(4, 3, 3)})
    assert torch.allclose(ran("general.naive", eye), softmax_out(call, 1.0), rtol=0, atol=1e-14)


def test_additive_with_equal_hidden_units_weighs_visible_keys_equally() -> None:
    """score = 0 makes every logit 0: the mean of the visible values."""
    _, call = drawn("additive.chunked", mask="causal")
    level = replace(call, parameters={**call.parameters, "score": torch.zeros_like(call.parameters["score"])})
    v = call.v.repeat_interleave(2, 1)
    means = torch.stack([v[:, :, : i + 1].mean(2) for i in range(5)], 2)
    for name in ("additive.chunked", "additive.broadcast"):
        assert torch.allclose(ran(name, level), means, rtol=0, atol=1e-14)


def test_two_keys_worked_by_hand() -> None:
    """One hidden unit, weights 1, keys ±∞-like: logits +1 and -1, weights e²/(e²+1) and 1/(e²+1)."""
    one = torch.ones((1, 1, 1), dtype=torch.float64)
    parameters = {"w_q": one * 0, "w_k": one * 100, "score": one[0], "b": one[0] * 0}
    axes = {n: p.axes for n, p in catalogue.find("additive.broadcast").variant.parameters.items()}
    _, base = drawn("additive.broadcast", mask="full")
    k = torch.tensor([1.0, -1.0], dtype=torch.float64).view(1, 1, 2, 1)
    v = torch.tensor([10.0, 20.0], dtype=torch.float64).view(1, 1, 2, 1)
    mask = replace(base.mask, q_len=1, kv_len=2)
    call = Call(k[:, :, :1], k, v, mask, 1.0, parameters, axes)
    e2 = np.exp(2.0)
    for name in ("additive.broadcast", "additive.chunked"):
        assert ran(name, call).item() == pytest.approx((10 * e2 + 20) / (e2 + 1), abs=1e-12)


def test_chunks_of_additive_attention_hold_no_hidden_unit_for_the_backward() -> None:
    largest = {}
    for name in ("additive.broadcast", "additive.chunked:block-4"):
        _, call = drawn(name, q_len=32, kv_len=32, kv_heads=4, batch=1, mask="full")
        call = call.map(lambda t: t.requires_grad_())
        sizes = []
        run = catalogue.find(name).inner.prepare(call, False)
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            run(call)
        largest[name] = max(sizes)
    assert largest == {"additive.broadcast": 4 * 32 * 32 * 16, "additive.chunked:block-4": 4 * 32 * 16}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("temperature:tau-0.naive", "tau of temperature must be positive"),
        ("temperature:tau-nan.naive", "tau of temperature must be positive"),
        ("additive:hidden-0.broadcast", "option hidden must be at least 1"),
        ("additive.chunked:block-0", "option block must be at least 1"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        catalogue.find(name)


def test_a_parameter_may_not_take_the_name_of_an_input() -> None:
    variant = catalogue.find("general.naive").variant
    with pytest.raises(ValueError, match="'v' has the name of an input"):
        replace(variant, parameters={"v": variant.parameters["w"]})
