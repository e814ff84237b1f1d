"""Dilated window: which keys are left, also against attn-gym's mask, and what the residue classes cost."""

from __future__ import annotations

import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, by_loop, close, held, pairs
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation, run

NAME = "dilated:window-6:rate-2"
VARIANT = catalogue.find(f"{NAME}.naive").variant
FORMS = ("naive", "sdpa_flash", "tiles", "residues", "residues:block-2")


@pytest.mark.parametrize("axes", CALLS)
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict) -> None:
    call = drawn(VARIANT, **axes)
    right = by_loop(call, lambda h, i, j: j - i in (-4, -2, 0, 2, 4))
    close(definition(VARIANT, call), right)
    for form in FORMS:
        close(run(f"{NAME}.{form}", call), right)


@pytest.mark.parametrize(("window", "rate"), [(6, 2), (7, 3), (4, 5)])
def test_pairs_are_those_of_attn_gym(window: int, rate: int) -> None:
    masks = pytest.importorskip("attn_gym.masks")
    theirs = masks.generate_dilated_sliding_window(window - 1, rate)  # it keeps |i - j| <= its window
    i, j = torch.arange(20)[:, None], torch.arange(20)
    variant = catalogue.find(f"dilated:window-{window}:rate-{rate}.naive").variant
    call = drawn(variant, q_len=20, kv_len=20, mask="full")
    assert torch.equal(variant.weights(call, torch.arange(20))[0, 0] > 0, theirs(0, 0, i, j))


def test_pairs_counted_by_hand() -> None:
    assert pairs(VARIANT, drawn(VARIANT, q_len=6, kv_len=6, mask="full")) == 2 * 9
    assert pairs(VARIANT, drawn(VARIANT, q_len=8, kv_len=8)) == 2 * (1 + 2 + 3 + 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_rate_one_is_the_sliding_window(form: str, mask: str) -> None:
    call = drawn(VARIANT, q_len=13, kv_len=13, mask=mask)
    window = definition(catalogue.find("sliding_window:window-3.naive").variant, call)
    close(run(f"dilated:window-3:rate-1.{form}", call), window.numpy())


@pytest.mark.parametrize("form", FORMS)
def test_a_window_of_the_rate_leaves_each_query_itself(form: str) -> None:
    call = drawn(VARIANT)
    close(run(f"dilated:window-4:rate-4.{form}", call), call.v.numpy())


@pytest.mark.parametrize("form", FORMS)
def test_a_part_keeps_its_classes(form: str) -> None:
    call = drawn(VARIANT, q_len=17, kv_len=17, mask="full")
    close(run(f"{NAME}.{form}", call.rows(9, 12).keys(1, 17)), run(f"{NAME}.{form}", call)[:, :, 9:12].numpy())


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"{NAME}.{form}", drawn(VARIANT), 4)


def test_twice_the_rate_holds_about_half_the_scores() -> None:
    def scores(window: int, rate: int) -> int:
        made = implementation(f"dilated:window-{window}:rate-{rate}.residues:block-8")
        return held(made, drawn(VARIANT, q_len=512, kv_len=512, head_dim=1, value_dim=1, mask="full"))

    assert scores(257, 2) / scores(257, 4) == pytest.approx((8 + 256) / (8 + 128), rel=0.1)
    assert scores(257, 4) < 4 * 2 * 512 * 512


def test_options_without_sense_are_errors() -> None:
    for option in ("window", "rate"):
        with pytest.raises(ValueError, match=f"{option} must be at least 1"):
            catalogue.find(f"dilated:{option}-0.naive")
