"""Bucketed local attention: which buckets a query sees, also against the package local-attention."""

from __future__ import annotations

import pytest

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, by_loop, close, held, pairs
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation, run
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "bucketed_local:bucket-3"
VARIANT = catalogue.find(f"{NAME}.naive").variant
FORMS = ("naive", "sdpa_flash", "tiles", "buckets")


def keeps(backward: int, forward: int):
    def kept(h: int, i: int, j: int) -> bool:
        own = (i - i % 3, i - i % 3 + 3)
        return own[0] - 3 * backward <= j < own[1] + 3 * forward

    return kept


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize(("backward", "forward"), [(1, 1), (2, 0), (0, 2)])
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict, backward: int, forward: int) -> None:
    name = f"{NAME}:backward-{backward}:forward-{forward}"
    call = drawn(VARIANT, **axes)
    right = by_loop(call, keeps(backward, forward))
    close(definition(catalogue.find(f"{name}.naive").variant, call), right)
    for form in FORMS:
        close(run(f"{name}.{form}", call), right)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_against_local_attention(form: str, mask: str) -> None:
    """Lengths that the bucket divides: the package lets queries see its padding otherwise."""
    local_attention = pytest.importorskip("local_attention")
    call = drawn(VARIANT, q_len=15, kv_len=15, mask=mask)
    theirs = local_attention.LocalAttention(3, causal=mask == "causal", use_rotary_pos_emb=False)
    close(run(f"{NAME}.{form}", call), theirs(call.q, call.k, call.v).numpy())


def test_pairs_counted_by_hand() -> None:
    assert pairs(VARIANT, drawn(VARIANT, q_len=9, kv_len=9, mask="full")) == 3 * 6 + 3 * 9 + 3 * 6
    assert pairs(VARIANT, drawn(VARIANT, q_len=9, kv_len=9)) == (1 + 2 + 3) + (4 + 5 + 6) * 2


@pytest.mark.parametrize("form", FORMS)
def test_reductions_to_softmax_and_to_block_diagonal(form: str) -> None:
    call = drawn(VARIANT)
    close(run(f"bucketed_local:bucket-7.{form}", call), definition(SOFTMAX, call).numpy())
    alone = run(f"{NAME}:backward-0:forward-0.{form}", call)
    close(alone, definition(catalogue.find("block_diagonal:block-3.naive").variant, call).numpy())


@pytest.mark.parametrize("form", FORMS)
def test_a_part_keeps_its_buckets(form: str) -> None:
    call = drawn(VARIANT, q_len=17, kv_len=17, mask="full")
    close(run(f"{NAME}.{form}", call.rows(8, 13).keys(1, 17)), run(f"{NAME}.{form}", call)[:, :, 8:13].numpy())


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"{NAME}.{form}", drawn(VARIANT), 4)


def test_what_the_buckets_hold_grows_with_the_length_alone() -> None:
    made = implementation("bucketed_local:bucket-16.buckets")
    small, large = (held(made, drawn(VARIANT, q_len=n, kv_len=n, mask="full")) for n in (256, 512))
    assert large / small == pytest.approx(2.0, rel=0.05)


def test_options_without_sense_are_errors() -> None:
    with pytest.raises(ValueError, match="bucket must be at least 1"):
        catalogue.find("bucketed_local:bucket-0.naive")
    with pytest.raises(ValueError, match="forward counts buckets"):
        implementation("bucketed_local:forward--1.naive")
