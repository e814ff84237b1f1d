"""One element at a time: the weights of a mechanism from its logit of one query and one key, in Python and numpy;
and x-transformers' attention, which many of the mechanisms are options of."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from attention_impls.call import Call
from attention_impls.tests.variant_steps import softmax_loop

Logit = Callable[[int, np.ndarray, np.ndarray], float]
"""(head, one query [D], one key [D]) -> its logit."""

Row = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(logits [J], which keys are seen [J]) -> weights [J]."""


def seen_by_loop(call: Call) -> np.ndarray:
    """[B, H, I, J] bool."""
    shape = (*call.q.shape[:3], call.k.shape[2])
    visible = call.mask.visible()
    return np.ones(shape, bool) if visible is None else visible.expand(shape).numpy()


def weights_by_loop(call: Call, logit: Logit, row: Row = softmax_loop) -> np.ndarray:
    """[B, H, I, J]; query head h reads key/value head h * G // H."""
    q, k, seen = call.q.numpy(), call.k.numpy(), seen_by_loop(call)
    weights = np.zeros(seen.shape)
    for b, h, i in np.ndindex(*q.shape[:3]):
        keys = k[b, h * k.shape[1] // q.shape[1]]
        weights[b, h, i] = row(np.array([logit(h, q[b, h, i], key) for key in keys]), seen[b, h, i])
    return weights


def out_by_loop(call: Call, weights: np.ndarray) -> torch.Tensor:
    """weights · v."""
    group = call.q.shape[1] // call.k.shape[1]
    return torch.from_numpy(weights @ call.v.numpy().repeat(group, 1))


def x_transformers(**options: object) -> nn.Module:
    """Its attention in float64, causal unless told otherwise; skips where the package is not there.

    `qk_norm` has no effect there but that the softmax keeps the inputs' dtype. Its causal mask is bottom-right.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit.script, which it uses
        module = pytest.importorskip("x_transformers.attend")
    return module.Attend(**{"causal": True, "qk_norm": True, **options}).double()
