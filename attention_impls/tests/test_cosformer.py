from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.mask import Mask
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    with_parameters,
)
from attention_impls.variants.linear.cosformer import COSFORMER

CAUSAL = ("cosformer.quadratic", "cosformer.chunked", "cosformer.chunked:chunk-3")
FULL = ("cosformer.quadratic", "cosformer.parallel")


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_every_element_is_a_relu_product_times_a_cosine_over_its_row_sum(mask: str) -> None:
    call = drawn(COSFORMER, mask=mask, q_len=5, kv_len=7)
    q, k = call.q.numpy().clip(0), call.k.numpy().clip(0)
    expected = np.zeros((2, 4, 5, 7))
    for b, h, i in np.ndindex(2, 4, 5):
        row = [
            sum(q[b, h, i] * k[b, h, j]) * math.cos(math.pi / 2 * (i - j) / 7) if mask == "full" or j <= i else 0.0
            for j in range(7)
        ]
        expected[b, h, i] = np.array(row) / (sum(row) or 1.0)
    np.testing.assert_allclose(COSFORMER.weights(call, torch.arange(5)).numpy(), expected, atol=1e-6)  # float32 table


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_forms_agree_from_any_start(name: str) -> None:
    for axes in ({"q_len": 11, "kv_len": 11}, {"q_len": 4, "kv_len": 9, "mask": "causal:bottom_right"}):
        call = drawn(COSFORMER, kv_heads=2, **axes)
        torch.testing.assert_close(run(name, call), definition(COSFORMER, call))


@pytest.mark.parametrize("name", FULL)
def test_forms_that_see_all_keys_agree(name: str) -> None:
    call = drawn(COSFORMER, mask="padded:0.4", q_len=5, kv_len=11, value_dim=3)
    torch.testing.assert_close(run(name, call), definition(COSFORMER, call))


@pytest.mark.parametrize("name", [*FULL, "cosformer.chunked"])
def test_with_all_angles_equal_it_is_linear_attention_with_relu(name: str) -> None:
    mask = "full" if name in FULL else "causal"
    call = with_parameters(drawn(COSFORMER, mask=mask), angle=torch.zeros(7).double())
    similar = call.q.relu() @ call.k.relu().mT
    if mask == "causal":
        similar = similar.tril()
    total = similar.sum(-1, keepdim=True)
    torch.testing.assert_close(run(name, call), similar @ call.v / torch.where(total == 0, 1.0, total))


@pytest.mark.parametrize("name", CAUSAL)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(COSFORMER), 4)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_part_of_a_call_keeps_its_positions(name: str) -> None:
    whole = drawn(COSFORMER, q_len=9, kv_len=9)
    torch.testing.assert_close(run(name, whole.rows(6, 9)), run(name, whole)[:, :, 6:])


def test_positions_beyond_the_table_are_refused_by_a_sentence() -> None:
    call = drawn(COSFORMER)
    beyond = replace(call, mask=Mask(7, 7, causal=True, q_start=3))
    assert "queries stand beyond" in (implementation("cosformer.quadratic").refuses(beyond) or "")
