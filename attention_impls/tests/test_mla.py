from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_impls import catalogue, layer_subject
from attention_impls.contract import Workload
from attention_impls.inputs import build_mask, draw_upstream
from attention_impls.layers.mla import rotated

WORKLOAD = Workload(
    batch=2, heads=2, kv_heads=2, q_len=9, kv_len=9, head_dim=4, value_dim=4, dtype="f64", mask="causal"
)


def answer(name: str, workload: Workload) -> tuple[Tensor, dict[str, Tensor]]:
    subject = catalogue.find(name)
    assert layer_subject.refuses(subject, workload, "train", "cpu") is None
    made = layer_subject.prepare(subject, workload)
    x = layer_subject.draw(workload).requires_grad_()
    out, leaves = made.run(x), made.leaves(x)
    return out, dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), draw_upstream(out)), strict=True))


@pytest.mark.parametrize("kernel", ["naive", "sdpa_math", "tiles"])
@pytest.mark.parametrize("axes", [{}, {"mask": "full"}, {"mask": "causal+padded:0.5", "value_dim": 6}])
def test_absorbed_is_explicit_in_value_and_gradients(kernel: str, axes: dict[str, object]) -> None:
    workload = replace(WORKLOAD, **axes)
    explicit, gradients = answer("softmax.naive+in:mla", workload)
    absorbed, others = answer(f"softmax.{kernel}+in:mla:form-absorbed", workload)
    torch.testing.assert_close(absorbed, explicit, rtol=1e-12, atol=1e-12)
    assert set(gradients) == set(others)
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-12, atol=1e-12, msg=name)


def turned(x: np.ndarray, position: int) -> np.ndarray:
    """Neighbouring entries as a complex number, turned by position · 10000^(-p/R)."""
    pairs = x[0::2] + 1j * x[1::2]
    rates = [10000.0 ** (-2 * p / len(x)) for p in range(len(pairs))]
    pairs = pairs * np.exp(1j * position * np.array(rates))
    return np.stack([pairs.real, pairs.imag], -1).ravel()


def test_the_layer_is_the_papers_equations_row_by_row() -> None:
    subject = catalogue.find("softmax.naive+in:mla")
    made, x = layer_subject.prepare(subject, WORKLOAD), layer_subject.draw(WORKLOAD)
    w = {name: p.detach().numpy() for name, p in made.module.named_parameters()}
    heads, nope, rope, latent = 2, 4, 2, 16
    expected = np.zeros((2, 9, 8))
    for b in range(2):
        tokens = x[b].numpy()
        down = tokens @ w["kv_down.weight"].T
        c = down[:, :latent] / np.sqrt((down[:, :latent] ** 2).mean(-1, keepdims=True) + 1e-6) * w["norm.weight"]
        shared = [turned(down[j, latent:], j) for j in range(9)]
        for i in range(9):
            outs = []
            for h in range(heads):
                q = (w["q.weight"] @ tokens[i])[h * (nope + rope) : (h + 1) * (nope + rope)]
                key_up, value_up = w["k_up.weight"][h * 4 : h * 4 + 4], w["v_up.weight"][h * 4 : h * 4 + 4]
                logits = [
                    (q[:nope] @ (key_up @ c[j]) + turned(q[nope:], i) @ shared[j]) / math.sqrt(nope + rope)
                    for j in range(i + 1)
                ]
                powers = np.exp(np.array(logits) - max(logits))
                outs.append(sum(p * (value_up @ c[j]) for j, p in enumerate(powers / powers.sum())))
            expected[b, i] = w["o.weight"] @ np.concatenate(outs)
    np.testing.assert_allclose(made.run(x).detach().numpy(), expected, atol=1e-12)


def test_rotation_depends_on_distance_alone() -> None:
    both = torch.randn((2, 1, 1, 1, 6), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    q, k = (rotated(x.expand(1, 1, 8, 6))[0, 0] for x in both)
    products = q @ k.mT
    torch.testing.assert_close(products[3:, 3:], products[:-3, :-3])
    assert abs(float(products[0, 1] - products[1, 0])) > 1e-3


def test_later_tokens_change_nothing_before() -> None:
    made = layer_subject.prepare(catalogue.find("softmax.naive+in:mla:form-absorbed"), WORKLOAD)
    x = layer_subject.draw(WORKLOAD)
    other = x.clone()
    other[:, 5] += 1.0
    before, after = made.run(x), made.run(other)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=1e-14)
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("form", ["explicit", "absorbed"])
def test_float32_is_its_float64_self(form: str) -> None:
    name = "softmax.naive+in:mla" + ("" if form == "explicit" else ":form-absorbed")
    narrow = replace(WORKLOAD, dtype="f32")
    out, _ = answer(name, narrow)
    right = layer_subject.reference(catalogue.find(name), narrow, layer_subject.draw(narrow))
    torch.testing.assert_close(out.double(), right.out, rtol=1e-5, atol=1e-5)


def test_int8_leaves_alone_the_matrices_that_the_absorbed_form_reads() -> None:
    narrow = replace(WORKLOAD, dtype="f32")
    with torch.no_grad():
        made = layer_subject.prepare(catalogue.find("softmax.naive+in:mla:form-absorbed+int8_dynamic"), narrow)
    classes = made.facts()[layer_subject.MODULES]
    assert {name for name, found in classes.items() if "quantized" in found and "." not in name} >= {
        "q",
        "kv_down",
        "o",
    }
    assert classes["k_up"] == "attention_impls.layers.mla.Up"


@pytest.mark.parametrize(
    ("name", "axes", "sentence"),
    [
        ("additive.broadcast+in:mla", {}, "mla is softmax attention"),
        ("softmax.naive+in:mla", {"kv_heads": 1}, "leave kv_heads equal to heads"),
        ("softmax.naive+in:mla", {"head_dim": 6}, "multiple of 4"),
        ("softmax.naive+in:mla", {"kv_len": 12}, "self-attention"),
        ("softmax.sdpa_flash+in:mla", {}, "needs value size = head size"),
    ],
)
def test_what_it_cannot_do_is_refused_by_a_sentence(name: str, axes: dict[str, int], sentence: str) -> None:
    reason = layer_subject.refuses(catalogue.find(name), replace(WORKLOAD, **axes), "fwd", "cpu")
    assert reason is not None and sentence in reason


def test_an_unknown_form_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match="explicit, absorbed; got 'folded'"):
        catalogue.find("softmax.naive+in:mla:form-folded")


def test_masks_of_the_workload_reach_the_attention() -> None:
    assert build_mask(WORKLOAD).causal
    one, two = (answer("softmax.naive+in:mla", replace(WORKLOAD, mask=mask))[0] for mask in ("causal", "full"))
    assert not torch.allclose(one, two)
