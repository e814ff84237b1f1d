"""FlexAttention: refusals, the proof that it runs compiled, and its answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attention_impls import catalogue, inputs
from attention_impls.contract import Workload
from attention_impls.needs import CPP_COMPILER
from attention_impls.variants.exact import flex

SMALL = Workload(batch=2, heads=4, kv_heads=2, q_len=9, kv_len=37, head_dim=8, value_dim=12)


def drawn(**axes: object):
    subject = catalogue.find("softmax.flex")
    return subject, inputs.draw(subject.variant, replace(SMALL, **axes))  # type: ignore[arg-type]


def test_the_uncompiled_kernel_raises_instead_of_running() -> None:
    _, call = drawn()
    with pytest.raises(RuntimeError, match="about to run uncompiled"):
        flex._fused(call.q, call.k, call.v, None, 1.0)


def test_backward_on_the_cpu_and_float64_are_refused_with_a_sentence() -> None:
    subject, call = drawn()
    assert subject.inner.refuses(call, "fwd") is None
    assert subject.inner.refuses(call, "fwdbwd") == "has no backward on the CPU"
    assert subject.inner.refuses(replace(call, place="cuda"), "fwdbwd") is None
    assert "does not take f64" in subject.inner.refuses(drawn(dtype="f64")[1])
    assert "empty batch" in subject.inner.refuses(drawn(batch=0)[1])


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert "C++ compiler" in catalogue.find("softmax.flex").missing()


def test_switching_compilation_off_is_an_error_and_not_a_slow_kernel() -> None:
    subject, call = drawn()
    with torch.compiler.set_stance("force_eager"), pytest.raises(RuntimeError, match="about to run uncompiled"):
        subject.inner.prepare(call, False)


@pytest.mark.slow
@pytest.mark.skipif(CPP_COMPILER.missing() is not None, reason="needs a C++ compiler")
def test_compiled_in_prepare_it_is_softmax_of_the_visible_keys_and_compiles_nothing_in_run() -> None:
    from torch._dynamo.utils import counters

    subject, call = drawn(mask="causal:bottom_right+padded:0.5")
    other = inputs.draw(subject.variant, replace(SMALL, mask="causal:bottom_right+padded:0.5"), which=1)
    with torch.no_grad():
        before = counters["stats"]["unique_graphs"]
        run = subject.inner.prepare(call, False)
        compiled = counters["stats"]["unique_graphs"]
        out = run(other).out
    assert compiled > before and counters["stats"]["unique_graphs"] == compiled
    k, v = (t.double().repeat_interleave(2, 1) for t in (other.k, other.v))
    scores = other.q.double() @ k.mT * other.scale
    hidden = ~other.mask.visible()
    weights = torch.softmax(scores.masked_fill(hidden, -1e300), -1).masked_fill(hidden, 0.0)
    assert torch.allclose(out.double(), weights @ v, rtol=0, atol=2e-6)
