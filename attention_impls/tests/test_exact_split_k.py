"""softmax.split_k: parts of the keys at once, joined by their log-sum-exp."""

from __future__ import annotations

import pytest
import torch

from attention_impls import catalogue
from attention_impls.mask import Mask, full_mask
from attention_impls.tests.exact_steps import (
    MASKS,
    alone,
    answer,
    by_hand,
    drawn,
    has_torchs_gradients,
    is_softmax,
    products,
    sizes,
)

PARTS = (1, 3, 8, 30)  # 30: more parts than keys


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("parts", PARTS)
def test_value_and_log_sum_exp_are_those_summed_by_hand(parts: int, mask: str) -> None:
    is_softmax(f"split_k:parts-{parts}", drawn(mask))


@pytest.mark.parametrize("mask", ["full", "aligned", "early", "packed", "dense"])
@pytest.mark.parametrize("parts", PARTS)
def test_gradients_are_those_of_torchs_attention(parts: int, mask: str) -> None:
    has_torchs_gradients(f"split_k:parts-{parts}", drawn(mask))


def test_all_parts_are_one_product_and_what_is_left_over_is_another() -> None:
    assert len(sizes("split_k:parts-4", drawn(full_mask(1, 64)), products)) == 2
    assert len(sizes("split_k:parts-16", drawn(full_mask(1, 64)), products)) == 2
    assert len(sizes("split_k:parts-16", drawn(full_mask(1, 67)), products)) == 4


def test_keys_are_not_copied_and_those_behind_the_last_visible_one_are_not_read() -> None:
    call = drawn(full_mask(1, 512), heads=2, d=8, e=8)
    assert (
        max(sizes("split_k", call, lambda op: op in ("clone", "cat", "copy_", "_to_copy", "index")))
        < call.k.numel() / 8
    )
    short = drawn(Mask(1, 512, key_lengths=torch.tensor([64, 32])))
    assert sum(sizes("split_k:parts-8", short, products)) == 2 * 4 * 64 + 2 * 4 * 8 * 3  # scores, then 8 parts' outputs


def test_the_join_of_two_halves_is_the_whole_by_hand() -> None:
    call = drawn("full")
    halves = [by_hand(alone(call, 1, slice(None), keys)) for keys in (slice(0, 10), slice(10, 20))]
    whole = torch.logaddexp(*(torch.from_numpy(lse) for _, lse in halves))
    out = sum(torch.from_numpy(o) * (torch.from_numpy(lse) - whole).exp()[..., None] for o, lse in halves)
    found = answer("split_k:parts-2", alone(call, 1, slice(None), slice(0, 20)))
    torch.testing.assert_close(found.out.detach(), out, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.lse.detach(), whole, rtol=0, atol=1e-13)


def test_less_than_one_part_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="option parts must be at least 1"):
        catalogue.find("softmax.split_k:parts-0")
