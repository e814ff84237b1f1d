"""Shared by the tests of patterns fixed by position: a softmax loop over single pairs, counts, and what is held."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.contract import Implementation, Variant
from attention_impls.names import parse
from attention_impls.tests.variant_steps import definition, drawn, implementation, run

Keeps = Callable[[int, int, int], bool]
"""(query head, query position, key position) -> whether the pair counts."""


def by_loop(call: Call, keeps: Keeps) -> np.ndarray:
    """out [B, H, I, E] by the formula, one row at a time in numpy; `keeps` and the call's own mask decide."""
    q, k, v = (t.detach().numpy() for t in (call.q, call.k, call.v))
    own = call.mask.visible()
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, r in np.ndindex(*q.shape[:3]):
        g, i = h * k.shape[1] // q.shape[1], call.mask.q_start + r
        seen = [
            c
            for c in range(k.shape[2])
            if keeps(h, i, call.mask.k_start + c) and (own is None or own[b % len(own), h % own.shape[1], r, c])
        ]
        if seen:
            powers = [math.exp(call.scale * float(np.dot(q[b, h, r], k[b, g, c]))) for c in seen]
            out[b, h, r] = sum(p * v[b, g, c] for p, c in zip(powers, seen, strict=True)) / sum(powers)
    return out


def close(found: Tensor, right: np.ndarray) -> None:
    np.testing.assert_allclose(found.detach().numpy(), right, rtol=0, atol=1e-12)


def pairs(variant: Variant, call: Call) -> int:
    """How many pairs of one head of one sequence have weight, by the definition."""
    weights = variant.weights(call.expanded(), torch.arange(call.q.shape[2]))
    return int((weights[0, 0] > 0).sum())


def held(made: Implementation, call: Call) -> int:
    """How many numbers a forward keeps for its backward."""
    call, sizes = call.map(lambda t: t.requires_grad_()), []
    run = made.prepare(call, False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        run(call)
    return sum(sizes)


CALLS = (
    {"q_len": 13, "kv_len": 13},
    {"mask": "full", "q_len": 13, "kv_len": 10},
    {"q_len": 2, "kv_len": 9, "mask": "causal:bottom_right"},
    {"q_len": 9, "kv_len": 9, "kv_heads": 2, "mask": "packed:2"},
    {"q_len": 9, "kv_len": 9, "mask": "padded:0.4"},
    {"q_len": 9, "kv_len": 9, "mask": "causal+padded:0.4"},
)


def forms(name: str) -> list[str]:
    """Every implementation of the variant `name`, with its options; with blocks of 2 rows too, where it has them."""
    known = (parse(full).implementation for full in catalogue.implementations(parse(f"{name}.x").variant))
    found = [f"{name}.{one}" for one in known]
    return found + [f"{one}:block-2" for one in found if implementation(one).configure]


def answers(name: str, call: Call) -> Iterator[Tensor]:
    """The definition's output for a call and every implementation's that does not refuse it."""
    yield definition(catalogue.find(forms(name)[0]).variant, call.expanded())
    ready = [form for form in forms(name) if implementation(form).refuses(call) is None]
    assert len(ready) > 1, f"only {ready} took the call"
    yield from (run(form, call) for form in ready)


def parts_keep_their_place(name: str, mask: str = "full") -> None:
    """Asserts that rows 8 … 12 of a call give the same when they are a call of their own with fewer keys."""
    call = drawn(catalogue.find(forms(name)[0]).variant, q_len=17, kv_len=17, mask=mask)
    *_, whole = answers(name, call)
    few = call.rows(8, 13)
    for found in answers(name, few):
        close(found, whole[:, :, 8:13].numpy())
    if mask == "causal":
        for found in answers(name, few.keys(0, 13)):
            close(found, whole[:, :, 8:13].numpy())
