"""Streaming attention: sinks and window, and decoding from a cache that does not grow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, answers, by_loop, close, held, pairs, parts_keep_their_place
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation, run
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "streaming:sinks-2:window-3"
VARIANT = catalogue.find(f"{NAME}.naive").variant


@pytest.mark.parametrize("axes", [axes for axes in CALLS if "causal" in axes.get("mask", "causal")])
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict) -> None:
    call = drawn(VARIANT, **axes)
    right = by_loop(call, lambda h, i, j: j in (0, 1, i - 2, i - 1, i))
    for found in answers(NAME, call):
        close(found, right)


def test_pairs_counted_by_hand() -> None:
    assert pairs(VARIANT, drawn(VARIANT, q_len=9, kv_len=9)) == 1 + 2 + 3 + 4 + 5 * 5


@pytest.mark.parametrize("options", ["sinks-4:window-5", "sinks-9:window-1", "sinks-0:window-9"])
def test_a_cache_as_long_as_the_sequence_is_softmax(options: str) -> None:
    call = drawn(VARIANT, q_len=9, kv_len=9)
    for found in answers(f"streaming:{options}", call):
        close(found, definition(SOFTMAX, call).numpy())


def test_without_sinks_it_is_the_sliding_window() -> None:
    call = drawn(VARIANT, q_len=9, kv_len=9)
    window = definition(catalogue.find("sliding_window:window-3.naive").variant, call)
    for found in answers("streaming:sinks-0:window-3", call):
        close(found, window.numpy())


@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.9"])
@pytest.mark.parametrize(("rows", "first"), [(1, 29), (4, 26), (4, 2), (3, 1)])
def test_resume_gives_what_a_run_gives_and_reads_nothing_of_the_past(rows: int, first: int, mask: str) -> None:
    made = implementation(f"{NAME}.banded")
    call = drawn(VARIANT, q_len=rows, kv_len=first + rows, kv_heads=2, mask=mask)
    unread = call.k.clone(), call.v.clone()
    for x in unread:
        x[:, :, :first] = float("nan")
    cache = made.prefill(call)
    assert cache.k.shape[2] == cache.v.shape[2] == min(2 + 2, first)
    close(made.resume(replace(call, k=unread[0], v=unread[1]), cache).out, run(made, call).numpy())
    close(run(made, call), by_loop(call, lambda h, i, j: j in (0, 1, i - 2, i - 1, i)))


def test_a_part_keeps_its_place() -> None:
    parts_keep_their_place(NAME, "causal")


def test_later_tokens_change_nothing_before() -> None:
    changes_nothing_before(f"{NAME}.banded", drawn(VARIANT), 4)


def test_what_the_band_holds_grows_with_the_length_alone() -> None:
    made = implementation("streaming:sinks-4:window-16.banded:block-16")
    small, large = (held(made, drawn(VARIANT, q_len=n, kv_len=n)) for n in (256, 512))
    assert large / small == pytest.approx(2.0, rel=0.05)


def test_it_is_causal_only_and_options_without_sense_are_errors() -> None:
    assert "causal only" in implementation(f"{NAME}.naive").refuses(drawn(VARIANT, mask="full"))
    with pytest.raises(ValueError, match="window must be at least 1"):
        catalogue.find("streaming:window-0.naive")
    with pytest.raises(ValueError, match="sinks cannot be negative"):
        implementation("streaming:sinks--1.naive")
