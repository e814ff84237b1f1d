"""softmax.ring, softmax.striped and softmax.tree: keys that lie on several ranks."""

from __future__ import annotations

import pytest
import torch

from attention_impls import catalogue
from attention_impls.mask import Mask, full_mask
from attention_impls.tests.exact_steps import MASKS, answer, drawn, has_torchs_gradients, is_softmax, products, sizes
from attention_impls.variants.exact.ring import Plan, contiguous, round_robin
from attention_impls.variants.exact.tree import all_reduce

FORMS = ("ring", "striped", "tree")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("ranks", [1, 3, 4, 15])
@pytest.mark.parametrize("form", FORMS)
def test_value_and_log_sum_exp_are_those_summed_by_hand(form: str, ranks: int, mask: str) -> None:
    is_softmax(f"{form}:ranks-{ranks}", drawn(mask))


@pytest.mark.parametrize("mask", ["full", "aligned", "early", "packed"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_torchs_attention(form: str, mask: str) -> None:
    has_torchs_gradients(f"{form}:ranks-3", drawn(mask))


@pytest.mark.parametrize("form", ["ring", "striped"])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_ring_attention_of_ring_attention_pytorch(form: str, causal: bool) -> None:
    theirs = pytest.importorskip("ring_attention_pytorch.ring_flash_attention")
    call = drawn(Mask(16, 16, causal=causal), kv_heads=4, e=4)
    scaled = call.q * call.scale * 2  # theirs multiplies by D^-1/2 = 1/2, and works in float32
    q, k, v = (t.detach().transpose(1, 2).float() for t in (scaled, call.k, call.v))
    wanted = theirs.ring_flash_attn(q, k, v, causal=causal, bucket_size=4).transpose(1, 2)
    found = answer(f"{form}:ranks-4", call).out.detach().float()
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6)


def work(mask: Mask, share) -> list[list[int]]:
    """Visible pairs that each rank has at each step."""
    plan = Plan.of(mask, share, 4)
    steps = [[(r, (r - t) % 4) for t in range(4)] for r in range(4)]
    size = mask.q_len // 4 * (mask.kv_len // 4)

    def pairs(at: tuple[int, int]) -> int:
        seen = plan.visible.get(at, torch.zeros(1))
        return size if seen is None else int(seen.sum())

    return [[pairs(at) for at in row] for row in steps]


def test_contiguous_shares_leave_the_first_rank_idle_where_stripes_do_not() -> None:
    """16 causal tokens on 4 ranks: a share's own triangle has 10 pairs, whole blocks 16, stripes 10 or 6."""
    causal = Mask(16, 16, causal=True)
    assert work(causal, contiguous) == [[10, 0, 0, 0], [10, 16, 0, 0], [10, 16, 16, 0], [10, 16, 16, 16]]
    assert work(causal, round_robin) == [[10, 6, 6, 6], [10, 10, 6, 6], [10, 10, 10, 6], [10, 10, 10, 10]]


def test_shares_hold_every_token_once() -> None:
    for share in (contiguous, round_robin):
        for tokens in (1, 3, 4, 9, 16):
            held = [n for rank in range(4) for n in range(tokens)[share(rank, 4, tokens)]]
            assert sorted(held) == list(range(tokens))


@pytest.mark.parametrize("form", ["ring", "striped"])
def test_no_rank_scores_more_than_its_rows_against_one_block(form: str) -> None:
    call = drawn(full_mask(64, 64))
    assert max(sizes(f"{form}:ranks-4", call, products)) == 2 * 4 * 16 * 16
    assert len(sizes(f"{form}:ranks-4", call, products)) == 2 * 16


def test_blocks_hidden_by_causality_are_passed_on_without_work() -> None:
    call = drawn(Mask(64, 64, causal=True))
    assert len(sizes("ring:ranks-4", call, products)) == 2 * (4 + 3 + 2 + 1)
    assert len(sizes("striped:ranks-4", call, products)) == 2 * 16


@pytest.mark.parametrize(("parts", "levels"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_the_tree_is_as_deep_as_the_logarithm_of_the_ranks(parts: int, levels: int) -> None:
    depths = [torch.tensor([0.0, float(2**n)]) for n in range(parts)]
    found = all_reduce(lambda a, b: torch.stack([torch.maximum(a[0], b[0]) + 1, a[1] + b[1]]), depths)
    assert found.tolist() == [levels, 2**parts - 1]


@pytest.mark.parametrize("form", FORMS)
def test_less_than_one_rank_is_refused_by_name(form: str) -> None:
    with pytest.raises(ValueError, match="option ranks must be at least 1"):
        catalogue.find(f"softmax.{form}:ranks-0")
