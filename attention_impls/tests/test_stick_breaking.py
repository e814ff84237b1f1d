from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from attention_impls.tests.score_loops import out_by_loop, seen_by_loop
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, implementation, run
from attention_impls.variants.scores.stick_breaking import STICK_BREAKING

FORMS = ("stick_breaking.naive", "stick_breaking.tiled", "stick_breaking.tiled:block-2")


@pytest.mark.parametrize("mask", ["causal", "causal:bottom_right", "causal+padded:0.4", "causal+dense:0.6"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_a_loop_over_products(name: str, mask: str) -> None:
    call = drawn(STICK_BREAKING, mask=mask, kv_heads=2, q_len=5)
    start = call.mask.q_start
    q, k, seen = call.q.numpy(), call.k.numpy(), seen_by_loop(call)
    weights = np.zeros(seen.shape)
    for b, h, i in np.ndindex(*q.shape[:3]):
        beta = [1 / (1 + math.exp(-sum(q[b, h, i] * k[b, h // 2, j]) / 2.0)) for j in range(7)]
        keys = [j for j in range(7) if seen[b, h, i, j] and j < start + i]
        for j in keys:
            weights[b, h, i, j] = beta[j] * math.prod(1 - beta[nearer] for nearer in keys if nearer > j)
    found = STICK_BREAKING.weights(call.expanded(), torch.arange(5)).numpy()
    np.testing.assert_allclose(found, weights, atol=1e-14)
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", FORMS)
def test_it_agrees_with_flash_linear_attention(name: str) -> None:
    found = importlib.util.find_spec("fla")
    if found is None:
        pytest.skip("needs fla-core: pip install --no-deps fla-core")
    path = Path(found.submodule_search_locations[0]) / "ops/stickbreaking_attn/naive.py"  # by path: no triton
    spec = importlib.util.spec_from_file_location("fla_stickbreaking_naive", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    call = drawn(STICK_BREAKING, kv_heads=2, value_dim=3, q_len=9, kv_len=9)
    theirs = module.naive_stickbreaking_attn(*(x.transpose(1, 2) for x in (call.q, call.k, call.v)))[0]
    torch.testing.assert_close(run(name, call), theirs.transpose(1, 2))


@pytest.mark.parametrize("name", FORMS)
def test_shares_of_one_copy_the_key_before(name: str) -> None:
    call = drawn(STICK_BREAKING)
    call.q.fill_(50.0), call.k.fill_(50.0)
    out = run(name, call)
    torch.testing.assert_close(out[:, :, 1:], call.v[:, :, :-1])
    assert not out[:, :, 0].any()


@pytest.mark.parametrize("name", FORMS)
def test_shares_of_a_half_halve_the_stick_at_every_key(name: str) -> None:
    call = drawn(STICK_BREAKING, value_dim=7)
    call.q.zero_()
    call.v.copy_(torch.eye(7))
    expected = torch.tensor([[0.5 ** (i - j) if j < i else 0.0 for j in range(7)] for i in range(7)]).double()
    torch.testing.assert_close(run(name, call), expected.expand(2, 4, 7, 7))


def test_without_a_causal_mask_it_has_no_meaning() -> None:
    assert "causal only" in implementation("stick_breaking.naive").refuses(drawn(STICK_BREAKING, mask="full"))


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(STICK_BREAKING), 4)
