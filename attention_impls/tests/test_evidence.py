"""Operators are counted by hand here: what one naive step of softmax attention takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from attention_impls import catalogue, inputs
from attention_impls.contract import Evidence, Workload
from attention_impls.evidence import Told, backend_of, facts_of, gather, working

WORKLOAD = Workload(batch=2, heads=4, kv_heads=4, q_len=16, kv_len=16, head_dim=8, value_dim=8)


def _seen(name: str, *, gradients: bool = False, **axes: object) -> Evidence:
    subject = catalogue.find(name)
    call = inputs.draw(subject.variant, replace(WORKLOAD, **axes))
    for t in call.tensors():
        t.requires_grad_(gradients)
    return gather(subject.inner.prepare(call, False), call, inputs.draw_upstream(call.q) if gradients else None)


def test_a_naive_step_is_two_products_and_a_softmax_and_its_backward_four_products() -> None:
    seen = _seen("softmax.naive", gradients=True)
    assert working(seen.forward) == Counter(bmm=2, mul=1, _softmax=1)
    assert working(seen.backward) == Counter(bmm=4, mul=1, _softmax_backward_data=1)


def test_a_forward_alone_has_no_backward() -> None:
    assert _seen("softmax.naive").backward == Counter()


def test_dtypes_are_those_of_the_results() -> None:
    seen = _seen("softmax.naive", dtype="bf16", gradients=True)
    assert seen.dtypes["bmm"] == seen.dtypes["_softmax_backward_data"] == frozenset({"bf16"})
    assert _seen("softmax.naive").dtypes["bmm"] == frozenset({"f32"})


def test_an_upstream_gradient_without_an_input_that_requires_one_is_an_error() -> None:
    subject = catalogue.find("softmax.naive")
    call = inputs.draw(subject.variant, WORKLOAD)
    with pytest.raises(ValueError, match="requires_grad_"):
        gather(subject.inner.prepare(call, False), call, inputs.draw_upstream(call.q))


def test_gradients_are_not_accumulated_into_the_inputs() -> None:
    subject = catalogue.find("softmax.naive")
    call = inputs.draw(subject.variant, WORKLOAD)
    call.q.requires_grad_()
    gather(subject.inner.prepare(call, False), call, inputs.draw_upstream(call.q))
    assert call.q.grad is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("softmax.naive", "bmm×2 + _softmax"),
        ("softmax.naive+query_chunks:8", "bmm×4 + _softmax×2"),
        ("softmax.sdpa_flash", "_scaled_dot_product_flash_attention_for_cpu"),
        ("softmax.sdpa_flash+query_chunks:8", "_scaled_dot_product_flash_attention_for_cpu×2"),
    ],
)
def test_a_back_end_has_a_short_name(name: str, text: str) -> None:
    assert backend_of(_seen(name)) == text


def test_the_back_end_of_a_compiled_run_is_what_its_code_calls() -> None:
    code = Counter(cpp_fused_clone_0=1, _scaled_dot_product_flash_attention_for_cpu=1)
    facts = {"graphs": 1, "code": code}
    assert backend_of(Evidence(code, Counter(), {}, facts)) == "compiled: _scaled_dot_product_flash_attention_for_cpu"


def test_a_run_that_torch_cannot_see_says_so() -> None:
    assert backend_of(Evidence(Counter(view=3), Counter(), {})) == "nothing torch's dispatcher can see"


def test_facts_of_runs_inside_a_run_are_added() -> None:
    def plain(call: object) -> None:
        return None

    inner = [Told(plain, (), {"graphs": n, "code": Counter(bmm=n)}) for n in (1, 2)]
    assert facts_of(Told(plain, (*inner, plain), {"cuts": 1})) == {"graphs": 3, "code": Counter(bmm=3), "cuts": 1}
    assert facts_of(plain) == {}


def test_watching_leaves_the_output_alone() -> None:
    subject = catalogue.find("softmax.naive")
    call = inputs.draw(subject.variant, WORKLOAD)
    kept: list[torch.Tensor] = []

    def run(call: object) -> object:
        made = subject.inner.prepare(call, False)(call)
        kept.append(made.out)
        return made

    gather(run, call)
    torch.testing.assert_close(kept[0], subject.inner.prepare(call, False)(call).out, rtol=0, atol=0)
