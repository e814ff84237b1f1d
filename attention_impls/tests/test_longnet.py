"""LongNet: which tokens a branch takes, and how branches are mixed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, answers, by_loop, close, held, parts_keep_their_place
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "longnet:segment-2:growth-2:branches-3"
VARIANT = catalogue.find(f"{NAME}.dense").variant


def mixed_by_denominators(call) -> np.ndarray:
    """As the paper says it: each branch cuts segments, thins them for the head and runs softmax attention on what is
    left; a row's outputs are averaged with its denominators for weights."""
    q, k, v, own = call.q.numpy(), call.k.numpy(), call.v.numpy(), call.mask.visible()
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, r in np.ndindex(*q.shape[:3]):
        i, g, outs, denominators = call.mask.q_start + r, h * k.shape[1] // q.shape[1], [], []
        for w, rate in ((2, 1), (4, 2), (8, 4)):
            begin = i // w * w
            taken = list(range(begin + h % rate, begin + w, rate))  # segments are multiples of the rate
            if i not in taken:
                continue
            keys = [j - call.mask.k_start for j in taken if 0 <= j - call.mask.k_start < k.shape[2]]
            keys = [c for c in keys if own is None or own[b % len(own), h % own.shape[1], r, c]]
            powers = [math.exp(call.scale * float(q[b, h, r] @ k[b, g, c])) for c in keys]
            if powers:
                denominators.append(sum(powers))
                outs.append(sum(p * v[b, g, c] for p, c in zip(powers, keys, strict=True)) / sum(powers))
        if outs:
            out[b, h, r] = sum(d * o for d, o in zip(denominators, outs, strict=True)) / sum(denominators)
    return out


@pytest.mark.parametrize("axes", CALLS)
def test_definition_and_every_form_mix_branches_by_their_denominators(axes: dict) -> None:
    call = drawn(VARIANT, **axes)
    right = mixed_by_denominators(call)
    for found in answers(NAME, call):
        close(found, right)


def test_heads_take_different_tokens_and_keep_them_when_heads_are_cut() -> None:
    call = drawn(VARIANT, q_len=16, kv_len=16, mask="full")
    seen = VARIANT.weights(call, torch.arange(16))[0] > 0
    assert [torch.nonzero(seen[h, 4 + h]).flatten().tolist() for h in (0, 1)] == [[0, 4, 5, 6], [1, 4, 5, 7]]
    *_, whole = answers(NAME, call)
    for found in answers(NAME, call.heads(2, 4)):
        close(found, whole[:, 2:4].numpy())


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_one_branch_is_block_diagonal_and_one_segment_softmax(mask: str) -> None:
    call = drawn(VARIANT, mask=mask)
    blocks = definition(catalogue.find("block_diagonal:block-3.naive").variant, call)
    for found in answers("longnet:segment-3:branches-1", call):
        close(found, blocks.numpy())
    for options in ("segment-7:branches-1", "segment-7:growth-1:branches-3"):
        for found in answers(f"longnet:{options}", call):
            close(found, definition(SOFTMAX, call).numpy())


def test_two_equal_branches_change_nothing() -> None:
    call = drawn(VARIANT)
    for found in answers("longnet:segment-3:growth-1:branches-2", call):
        close(found, by_loop(call, lambda h, i, j: i // 3 == j // 3))


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_part_keeps_its_place(mask: str) -> None:
    parts_keep_their_place(NAME, mask)


def test_later_tokens_change_nothing_before() -> None:
    changes_nothing_before(f"{NAME}.branches", drawn(VARIANT), 4)


def test_what_the_branches_hold_grows_with_the_length_alone() -> None:
    made = implementation("longnet:segment-16:branches-3.branches")
    small, large = (held(made, drawn(VARIANT, q_len=n, kv_len=n, mask="full")) for n in (256, 512))
    assert large / small == pytest.approx(2.0, rel=0.05)


def test_options_without_sense_are_errors() -> None:
    for option in ("segment", "growth", "branches"):
        with pytest.raises(ValueError, match=f"{option} must be at least 1"):
            catalogue.find(f"longnet:{option}-0.dense")
