"""Block-sparse attention: what a layout keeps, for each head, and that only its blocks are computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, by_loop, close, held, pairs
from attention_impls.tests.variant_steps import definition, drawn, implementation, run, with_parameters
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "block_sparse:block-3:density-0.4"
VARIANT = catalogue.find(f"{NAME}.naive").variant
FORMS = ("naive", "sdpa_flash", "blocks")


@pytest.mark.parametrize("axes", CALLS)
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict) -> None:
    call = drawn(VARIANT, **axes)
    layout = call.parameters["layout"].tolist()
    right = by_loop(call, lambda h, i, j: layout[h][i // 3][j // 3])
    close(definition(VARIANT, call), right)
    for form in FORMS:
        close(run(f"{NAME}.{form}", call), right)


def laid(call, *kept: tuple[int, int, int]):
    layout = torch.zeros_like(call.parameters["layout"])
    for place in kept:
        layout[place] = True
    return with_parameters(call, layout=layout)


def test_pairs_of_a_layout_counted_by_hand() -> None:
    call = laid(drawn(VARIANT, q_len=8, kv_len=8, mask="full"), (0, 0, 0), (0, 2, 0), (0, 2, 2), (1, 1, 1))
    assert pairs(VARIANT, call) == 9 + 2 * 3 + 2 * 2


@pytest.mark.parametrize("form", FORMS)
def test_rows_without_a_block_are_zeros_and_have_no_gradient(form: str) -> None:
    call = laid(drawn(VARIANT, q_len=8, kv_len=8, mask="full"), (0, 2, 0), (3, 0, 1)).map(lambda t: t.requires_grad_())
    made = implementation(f"{NAME}.{form}")
    out, lse = made.prepare(call, True)(call)
    assert not out[:, 0, :6].any() and not out[:, 1:3].any() and out[:, 3, :3].all()
    assert torch.isneginf(lse[:, 1]).all() and torch.isfinite(lse[:, 0, 6:]).all()
    dq, dk, dv = torch.autograd.grad(out.square().sum(), (call.q, call.k, call.v))
    assert not dq[:, 1:3].any() and not dk[:, 1:3].any() and not dv[:, 1:3].any()
    assert dv[:, 0, :3].all() and not dv[:, 0, 3:].any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_a_layout_of_ones_is_softmax(form: str, mask: str) -> None:
    call = drawn(VARIANT, mask=mask, kv_heads=2)
    every = with_parameters(call, layout=torch.ones_like(call.parameters["layout"]))
    close(run(f"{NAME}.{form}", every), definition(SOFTMAX, call.expanded()).numpy())
    close(run(f"block_sparse:block-100.{form}", drawn(catalogue.find("block_sparse:block-100.naive").variant)),
          definition(SOFTMAX, drawn(SOFTMAX)).numpy())  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_part_keeps_its_blocks(form: str) -> None:
    call = drawn(VARIANT, q_len=17, kv_len=17)
    part = call.rows(8, 13).keys(0, 14).heads(1, 3)
    close(run(f"{NAME}.{form}", part), run(f"{NAME}.{form}", call)[:, 1:3, 8:13].numpy())


def test_what_is_held_grows_with_the_blocks_kept_and_not_with_the_square() -> None:
    name = "block_sparse:block-16"
    call = drawn(catalogue.find(f"{name}.naive").variant, q_len=512, kv_len=512, mask="full")
    once = with_parameters(call, layout=torch.eye(32, dtype=torch.bool).expand(4, 32, 32))
    full_row = once.parameters["layout"].clone()
    full_row[0, 0] = True  # one full row: 31 blocks more, not 31 for each of the 128
    few, more = (held(implementation(f"{name}.blocks"), c) for c in (once, with_parameters(call, layout=full_row)))
    np.testing.assert_allclose(more / few, 1.0 + 31 / 128, rtol=0.1)


def test_options_without_sense_are_errors() -> None:
    with pytest.raises(ValueError, match="density must be a share"):
        catalogue.find("block_sparse:density-0.blocks")
    with pytest.raises(ValueError, match="block must be at least 1"):
        catalogue.find("block_sparse:block-0.blocks")
