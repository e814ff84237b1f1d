"""Shared by the tests of single variants: float64 calls, the answers of every form, an independent softmax loop."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.contract import Implementation, Variant, Workload
from attention_impls.inputs import draw

BASE = Workload(batch=2, heads=4, kv_heads=4, q_len=7, kv_len=7, head_dim=4, value_dim=4, dtype="f64", mask="causal")


def implementation(name: str) -> Implementation:
    return catalogue.find(name).bare


def drawn(variant: Variant, **axes: object) -> Call:
    """A float64 call of `variant` with axes of BASE replaced, parameters in float64 too."""
    return draw(variant, replace(BASE, **axes)).map(Tensor.double)


def run(name: str | Implementation, call: Call) -> Tensor:
    made = implementation(name) if isinstance(name, str) else name
    assert made.refuses(call) is None, made.refuses(call)
    return made.prepare(call, False)(call).out


def definition(variant: Variant, call: Call) -> Tensor:
    """A·v and its finish, on all rows, from the definition."""
    rows, whole = torch.arange(call.q.shape[2]), call.expanded()
    out = variant.weights(whole, rows) @ whole.v
    return variant.finish(out, whole, rows) if variant.finish else out


def with_parameters(call: Call, **values: Tensor) -> Call:
    return replace(call, parameters={**call.parameters, **values})


def softmax_loop(logit: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """One row [J] of softmax over the seen keys, one element at a time; zeros where none is seen."""
    powers = [math.exp(x) if ok else 0.0 for x, ok in zip(logit, seen, strict=True)]
    total = sum(powers)
    return np.array([p / total if total else 0.0 for p in powers])


def changes_nothing_before(name: str, call: Call, token: int) -> None:
    """Asserts that other q, k, v at `token` move no earlier row, and that earlier rows send no gradient there."""
    made = implementation(name)
    leaves = [t.detach().clone().requires_grad_() for t in (call.q, call.k, call.v)]
    own = replace(call, q=leaves[0], k=leaves[1], v=leaves[2])
    before = run(made, own)
    other = replace(call, q=call.q.clone(), k=call.k.clone(), v=call.v.clone())
    for t in (other.q, other.k, other.v):
        t[:, :, token] = 3.0 - t[:, :, token]
    after = run(made, other)
    torch.testing.assert_close(after[:, :, :token], before[:, :, :token], rtol=0, atol=1e-13)
    assert not torch.allclose(after[:, :, token:], before[:, :, token:])
    for gradient in torch.autograd.grad(before[:, :, :token].square().sum(), leaves, materialize_grads=True):
        assert not gradient[:, :, token:].any()
