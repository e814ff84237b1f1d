"""Block-diagonal attention: which pairs it keeps, and that no tile outside the diagonal is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, by_loop, close, held, pairs
from attention_impls.tests.variant_steps import definition, drawn, implementation, run
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "block_diagonal:block-5"
VARIANT = catalogue.find(f"{NAME}.naive").variant
FORMS = ("naive", "tiles", "blocks")


def keeps(h: int, i: int, j: int) -> bool:
    """Blocks {0 … 4}, {5 … 9}, {10 … 14}, …, by counting."""
    lower = i - i % 5
    return lower <= j < lower + 5


@pytest.mark.parametrize("axes", CALLS)
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict) -> None:
    call = drawn(VARIANT, **axes)
    right = by_loop(call, keeps)
    close(definition(VARIANT, call), right)
    for form in FORMS:
        close(run(f"{NAME}.{form}", call), right)


def test_pairs_counted_by_hand() -> None:
    assert pairs(VARIANT, drawn(VARIANT, q_len=12, kv_len=12, mask="full")) == 25 + 25 + 4
    assert pairs(VARIANT, drawn(VARIANT, q_len=12, kv_len=12)) == 15 + 15 + 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", [7, 100])
def test_a_block_as_long_as_the_sequence_is_softmax(form: str, block: int) -> None:
    call = drawn(VARIANT)
    close(run(f"block_diagonal:block-{block}.{form}", call), definition(SOFTMAX, call).numpy())


@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_one_return_the_values(form: str) -> None:
    call = drawn(VARIANT)
    close(run(f"block_diagonal:block-1.{form}", call), call.v.numpy())


@pytest.mark.parametrize("form", FORMS)
def test_a_part_keeps_its_blocks(form: str) -> None:
    call = drawn(VARIANT, q_len=17, kv_len=17, mask="full")
    close(run(f"{NAME}.{form}", call.rows(8, 13).keys(3, 17)), run(f"{NAME}.{form}", call)[:, :, 8:13].numpy())


def test_what_the_blocks_hold_grows_with_the_length_alone() -> None:
    made = implementation("block_diagonal:block-16.blocks")
    sizes = [held(made, drawn(VARIANT, q_len=n, kv_len=n, mask="full")) for n in (256, 512)]
    np.testing.assert_allclose(sizes[1] / sizes[0], 2.0, rtol=0.05)


def test_a_later_block_has_no_gradient_from_an_earlier_one() -> None:
    call = drawn(VARIANT, q_len=10, kv_len=10, mask="full").map(lambda t: t.requires_grad_())
    (dv,) = torch.autograd.grad(run(f"{NAME}.blocks", call)[:, :, :5].sum(), call.v)
    assert dv[:, :, :5].abs().min() > 0 and not dv[:, :, 5:].any()


def test_a_block_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="block must be at least 1"):
        catalogue.find("block_diagonal:block-0.blocks")
