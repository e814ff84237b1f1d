from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
)
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("dense", "grid")
NAME = "axial:width-3"
VARIANT = catalogue.find(f"{NAME}.dense").variant


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_every_element_is_the_rows_softmax_plus_the_columns(mask: str) -> None:
    """Eight tokens, three columns: rows {0 1 2} {3 4 5} {6 7}, columns {0 3 6} {1 4 7} {2 5}."""
    call = drawn(VARIANT, mask=mask, q_len=8, kv_len=8)
    lines = [{0, 1, 2}, {3, 4, 5}, {6, 7}], [{0, 3, 6}, {1, 4, 7}, {2, 5}]
    q, k, expected = call.q.numpy(), call.k.numpy(), np.zeros((2, 4, 8, 8))
    for b, h, i in np.ndindex(2, 4, 8):
        logits = np.array([sum(q[b, h, i] * k[b, h, j]) / math.sqrt(4) for j in range(8)])
        for axis in lines:
            own = next(line for line in axis if i in line)
            seen = np.array([j in own and (mask == "full" or j <= i) for j in range(8)])
            expected[b, h, i] += softmax_loop(logits, seen)
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(8)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["full", "causal", "padded:0.5", "packed:2+causal", "dense:0.5"])
def test_both_forms_are_the_definition(form: str, mask: str) -> None:
    call = drawn(VARIANT, mask=mask, q_len=11, kv_len=11, kv_heads=2, value_dim=3)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [1, 7, 20])
def test_one_row_or_one_column_is_softmax_plus_the_token_itself(form: str, width: int) -> None:
    call = drawn(VARIANT)
    torch.testing.assert_close(run(f"axial:width-{width}.{form}", call), definition(SOFTMAX, call) + call.v)


def test_a_part_of_the_queries_keeps_its_place_on_the_grid() -> None:
    call = drawn(VARIANT, q_len=8, kv_len=8, mask="full")
    torch.testing.assert_close(run(f"{NAME}.dense", call.rows(4, 7)), run(f"{NAME}.dense", call)[:, :, 4:7])


def test_the_grid_form_refuses_calls_that_start_elsewhere() -> None:
    call = drawn(VARIANT, q_len=8, kv_len=8, mask="full").rows(4, 6).keys(4, 6)
    assert "starts elsewhere" in implementation(f"{NAME}.grid").refuses(call)
    assert implementation(f"{NAME}.dense").refuses(call) is None


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"{NAME}.{form}", drawn(VARIANT), 4)


def test_a_width_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="width must be at least 1"):
        catalogue.find("axial:width-0.dense")
