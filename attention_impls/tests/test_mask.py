"""The mask against a Python loop over every pair, and against counts done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attention_impls.mask import Mask, full_mask

BATCH, HEADS = 2, 2


def sees(mask: Mask, b: int, h: int, r: int, c: int) -> bool:
    """May query row r see key column c? The rules of Mask's docstring, one pair at a time."""
    start = mask.q_start
    if isinstance(start, Tensor):
        start = int(start[b] if start.dim() == 1 else start[b, r])
    i, j = start + r, mask.k_start + c
    if mask.causal and j > i:
        return False
    if mask.key_lengths is not None and j >= int(mask.key_lengths[b]):
        return False
    if mask.q_segments is not None and int(mask.q_segments[b, r]) != int(mask.k_segments[b, c]):
        return False
    if mask.dense is not None and not bool(mask.dense[b % mask.dense.shape[0], h % mask.dense.shape[1], r, c]):
        return False
    return mask.pattern is None or bool(mask.pattern(torch.tensor(i), torch.tensor(j)))


def looped(mask: Mask) -> Tensor:
    """[B, H, I, J], pair by pair."""
    return torch.tensor(
        [
            [[[sees(mask, b, h, r, c) for c in range(mask.kv_len)] for r in range(mask.q_len)] for h in range(HEADS)]
            for b in range(BATCH)
        ]
    ).view(BATCH, HEADS, mask.q_len, mask.kv_len)


def boolean(mask: Mask) -> Tensor:
    seen = mask.visible()
    shape = (BATCH, HEADS, mask.q_len, mask.kv_len)
    return torch.ones(shape, dtype=torch.bool) if seen is None else seen.expand(shape)


def _tensor(shape: tuple[int, ...], low: int, high: int) -> st.SearchStrategy[Tensor]:
    count = torch.Size(shape).numel()
    numbers = st.lists(st.integers(low, high), min_size=count, max_size=count)
    return numbers.map(lambda values: torch.tensor(values).view(shape))


@st.composite
def masks(draw: st.DrawFn) -> Mask:
    q, k = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    starts = st.one_of(st.integers(-3, 6), _tensor((BATCH,), -3, 6), _tensor((BATCH, q), -3, 6))
    segmented = draw(st.booleans())
    dense = st.one_of(*(_tensor((b, h, q, k), 0, 1).map(Tensor.bool) for b in (1, BATCH) for h in (1, HEADS)))
    return Mask(
        q_len=q,
        kv_len=k,
        causal=draw(st.booleans()),
        q_start=draw(starts),
        k_start=draw(st.integers(0, 3)),
        key_lengths=draw(st.none() | _tensor((BATCH,), 0, 8)),
        q_segments=draw(_tensor((BATCH, q), 0, 1)) if segmented else None,
        k_segments=draw(_tensor((BATCH, k), 0, 1)) if segmented else None,
        dense=draw(st.none() | dense),
        pattern=draw(st.sampled_from([None, lambda i, j: (i - j).abs() < 2, lambda i, j: i // 3 == j // 3])),
    )


many = settings(max_examples=150, deadline=None, derandomize=True)


@many
@given(masks())
def test_visible_is_what_a_loop_over_pairs_says(mask: Mask) -> None:
    assert torch.equal(boolean(mask), looped(mask))


@many
@given(masks(), st.data())
def test_visible_of_named_rows_is_those_rows(mask: Mask, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, mask.q_len - 1), min_size=1, max_size=4))
    seen = mask.visible(torch.tensor(rows))
    if seen is not None:
        assert torch.equal(seen.expand(BATCH, HEADS, -1, -1), looped(mask)[:, :, rows])


@many
@given(masks())
def test_pairs_counts_the_visible_pairs(mask: Mask) -> None:
    assert mask.pairs(BATCH, HEADS) == int(looped(mask).sum())


@many
@given(masks())
def test_a_mask_has_empty_rows_where_a_query_sees_nothing(mask: Mask) -> None:
    assert mask.has_empty_rows == bool((~looped(mask).any(-1)).any())


@many
@given(masks())
def test_simplified_never_changes_what_is_visible(mask: Mask) -> None:
    assert torch.equal(boolean(mask.simplified()), looped(mask))


@many
@given(masks())
def test_nothing_is_visible_after_last_visible(mask: Mask) -> None:
    assert not looped(mask)[..., mask.last_visible() :].any()


@many
@given(masks(), st.data())
def test_a_part_of_a_mask_is_that_part_of_what_it_shows(mask: Mask, data: st.DataObject) -> None:
    whole = looped(mask)
    lo = data.draw(st.integers(0, mask.q_len - 1))
    hi = data.draw(st.integers(lo + 1, mask.q_len))
    first = data.draw(st.integers(0, mask.kv_len - 1))
    last = data.draw(st.integers(first + 1, mask.kv_len))
    assert torch.equal(boolean(mask.rows(lo, hi)), whole[:, :, lo:hi])
    assert torch.equal(boolean(mask.keys(first, last)), whole[..., first:last])
    assert torch.equal(boolean(mask.keys(first, last).rows(lo, hi)), whole[:, :, lo:hi, first:last])
    assert torch.equal(boolean(mask.rows(lo, hi).keys(first, last)), whole[:, :, lo:hi, first:last])


@many
@given(masks())
def test_one_head_and_one_sequence_of_a_mask_are_that_part(mask: Mask) -> None:
    whole = looped(mask)
    for part in range(2):
        assert torch.equal(boolean(mask.heads(part, part + 1)), whole[:, part : part + 1].expand_as(whole))
        assert torch.equal(boolean(mask.batch(part)), whole[part : part + 1].expand_as(whole))


def rows_of(mask: Mask) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in looped(mask)[0, 0]]


@pytest.mark.parametrize(
    ("q_len", "kv_len", "top_left", "bottom_right"),
    [
        (2, 5, [[0], [0, 1]], [[0, 1, 2, 3], [0, 1, 2, 3, 4]]),
        (5, 2, [[0], [0, 1], [0, 1], [0, 1], [0, 1]], [[], [], [], [0], [0, 1]]),
        (1, 128, [[0]], [list(range(128))]),
    ],
)
def test_the_two_corners_of_causal_are_those_of_torch_and_of_flash_attention(
    q_len: int, kv_len: int, top_left: list[list[int]], bottom_right: list[list[int]]
) -> None:
    """pytorch#108108: is_causal is top-left; flash-attention since 2.1 is bottom-right."""
    assert rows_of(Mask(q_len, kv_len, causal=True)) == top_left
    corner = Mask(q_len, kv_len, causal=True, q_start=kv_len - q_len)
    assert rows_of(corner) == bottom_right
    assert torch.equal(boolean(corner), looped(corner))


@pytest.mark.parametrize(("left", "last_row", "total"), [(3, 4, 26), (2, 3, 21), (7, 8, 36)])
def test_window_counts_tell_the_two_conventions_apart(left: int, last_row: int, total: int) -> None:
    """transformers#39408: flash's window (w, 0) keeps w + 1 keys, the config's window of W keeps W; S = 8."""
    window = Mask(8, 8, causal=True, pattern=lambda i, j: i - j <= left)
    assert len(rows_of(window)[7]) == last_row
    assert window.pairs(1, 1) == total


def test_flop_pairs_of_a_cross_causal_call_are_34() -> None:
    """xformers#1033: 4 queries, 10 keys, bottom-right: 7 + 8 + 9 + 10 pairs, 1632 operations at D 8, E 16."""
    pairs = Mask(4, 10, causal=True, q_start=6).pairs(1, 1)
    assert pairs == 7 + 8 + 9 + 10 == 34
    assert 2 * pairs * (8 + 16) == 1632


def test_pairs_of_a_long_causal_mask_need_no_matrix() -> None:
    n = 1 << 20
    assert Mask(n, n, causal=True).pairs(3, 5) == 15 * n * (n + 1) // 2
    assert Mask(1, n, causal=True, q_start=n - 1, key_lengths=torch.tensor([5, n])).pairs(2, 4) == 4 * (5 + n)


def test_fewer_keys_than_queries_leaves_1056_rows_without_any() -> None:
    """flashinfer#4452: bottom-right with 1056 queries more than keys."""
    mask = Mask(1152, 96, causal=True, q_start=96 - 1152)
    assert mask.has_empty_rows
    assert mask.pairs(1, 1) == 96 * 97 // 2
    seen = mask.visible()
    assert seen is not None
    assert int((~seen.any(-1)).sum()) == 1056


def test_words_of_a_mask_are_those_of_support() -> None:
    mask = Mask(3, 3, causal=True, key_lengths=torch.tensor([2]), pattern=lambda i, j: i >= j)
    assert mask.kinds() == {"causal", "key_lengths", "pattern"}
    assert full_mask(3, 4).kinds() == {"full"}


@pytest.mark.parametrize(
    ("start", "word"),
    [(0, "zero"), (4, "aligned"), (2, "any"), (torch.tensor([1]), "per_sequence"), (torch.zeros(1, 3), "per_token")],
)
def test_words_of_a_start_are_those_of_support(start: int | Tensor, word: str) -> None:
    assert Mask(3, 7, causal=True, q_start=start).start() == word


def test_simplified_drops_what_hides_nothing() -> None:
    last = Mask(1, 9, causal=True, q_start=8, key_lengths=torch.tensor([9, 12]))
    one_document = replace(last, q_segments=torch.zeros(1, 1), k_segments=torch.zeros(1, 9))
    assert one_document.simplified().full
    everything = Mask(2, 2, dense=torch.ones(1, 1, 2, 2, dtype=torch.bool))
    assert everything.simplified().full
    assert not Mask(2, 2, causal=True).simplified().full


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"q_segments": torch.zeros(1, 2)}, "both q_segments"),
        ({"dense": torch.ones(2, 3, dtype=torch.bool)}, r"\[1\|B, 1\|H, I, J\]"),
        ({"dense": torch.ones(1, 1, 3, 2, dtype=torch.bool)}, "I=2, J=3"),
        ({"dense": torch.ones(1, 1, 2, 3)}, "bool"),
        ({"key_lengths": torch.ones(2, 1)}, r"\[B\]"),
    ],
)
def test_parts_that_do_not_fit_are_refused_naming_the_axes(parts: dict[str, Tensor], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Mask(2, 3, **parts)


@pytest.mark.parametrize("mask", [Mask(3, 5, causal=True), Mask(3, 5, pattern=lambda i, j: i >= j)])
def test_a_mask_of_rules_alone_is_built_where_it_was_moved_to(mask) -> None:
    """On a GPU a mask made on the CPU would raise. The meta device stands for the other one."""
    moved = mask.to("meta")
    assert moved.visible().device.type == "meta"
    assert moved.rows(1, 3).keys(0, 2).visible().device.type == "meta"
    assert moved.to("cpu").visible().device.type == "cpu"
    assert torch.equal(moved.to("cpu").visible(), mask.visible())
