"""softmax.ulysses: tokens outside, heads inside, and two all-to-alls between."""

from __future__ import annotations

import pytest
import torch

from attention_impls import catalogue
from attention_impls.mask import full_mask
from attention_impls.tests.exact_steps import MASKS, drawn, has_torchs_gradients, is_softmax, products, sizes
from attention_impls.variants.exact.ulysses import to_heads, to_tokens


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("ranks", "kv_heads"), [(1, 2), (2, 2), (2, 4), (4, 4)])
def test_value_and_log_sum_exp_are_those_summed_by_hand(ranks: int, kv_heads: int, mask: str) -> None:
    is_softmax(f"ulysses:ranks-{ranks}", drawn(mask, kv_heads=kv_heads))


@pytest.mark.parametrize("mask", ["full", "aligned", "early", "packed", "dense"])
def test_gradients_are_those_of_torchs_attention(mask: str) -> None:
    has_torchs_gradients("ulysses:ranks-2", drawn(mask))


def test_the_first_exchange_gives_rank_r_all_tokens_of_its_heads() -> None:
    """Numbers that say where they come from: 100 · head + token, 4 heads and 6 tokens on 2 ranks."""
    whole = (100 * torch.arange(4)[:, None] + torch.arange(6)).view(1, 4, 6, 1)
    mine, other = to_heads([whole[:, :, :3], whole[:, :, 3:]])
    assert mine.flatten(2).tolist() == [[[0, 1, 2, 3, 4, 5], [100, 101, 102, 103, 104, 105]]]
    assert other.flatten(2).tolist() == [[[200, 201, 202, 203, 204, 205], [300, 301, 302, 303, 304, 305]]]


def test_the_second_exchange_gives_rank_r_all_heads_of_its_tokens() -> None:
    whole = (100 * torch.arange(4)[:, None] + torch.arange(6)).view(1, 4, 6, 1)
    first, second = to_tokens([whole[:, :2], whole[:, 2:]])
    assert first.equal(whole[:, :, :3]) and second.equal(whole[:, :, 3:])


def test_each_rank_scores_all_tokens_of_its_share_of_the_heads() -> None:
    made = sizes("ulysses:ranks-4", drawn(full_mask(16, 16), kv_heads=4), products)
    assert made == [2 * 1 * 16 * 16, 2 * 1 * 16 * 3] * 4


def test_more_ranks_than_key_heads_are_refused_by_a_sentence() -> None:
    made = catalogue.find("softmax.ulysses:ranks-4").inner
    assert "4 query and 2 key/value heads among 4 ranks" in made.refuses(drawn())


def test_less_than_one_rank_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="option ranks must be at least 1"):
        catalogue.find("softmax.ulysses:ranks-0")
