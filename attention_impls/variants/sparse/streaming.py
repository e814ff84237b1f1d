"""Streaming attention (StreamingLLM): causal softmax attention to the first `sinks` keys and the last `window` ones.

Query position i sees key position j where j ≤ i and (j < sinks or i - j < window): attention that was trained dense
puts weight on the first tokens whatever they say, and breaks when a window drops them. So a cache of sinks + window
keys serves a stream of any length, and that is what `prefill` keeps. Positions are the mask's absolute ones. With
sinks + window of at least the length it is causal `softmax`, with no sinks causal `sliding_window`.

Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453. There rotary
positions are counted anew within the cache; rotation is a layer's business. Options: sinks, window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads, softmax_rows
from attention_impls.contract import Growth, Implementation, Output
from attention_impls.gathered import Cover, blocks, first_query, lay, tiled_by_block, windowed
from attention_impls.makers import over, patterned, variant_over
from attention_impls.mask import Pattern
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked
from attention_impls.variants.exact.tiles import tiles
from attention_impls.variants.scores.softmax import SOFTMAX


def sinks_or_recent(sinks: int, window: int) -> Pattern:
    """j < sinks or i - j < window."""
    return lambda i, j: (j < sinks) | (i - j < window)


def _plan(sinks: int, window: int, block: int, call: Call) -> Sequence[Cover]:
    """Blocks of queries, each against the sinks and its slice of the band."""
    queries = blocks(call, block, aligned=False)
    return [[lay(call.mask, queries, windowed(call.mask, queries, window, sinks))]]


@dataclass(frozen=True, eq=False)
class Cache:
    """The sinks and the last window - 1 keys before the first query: columns [C] of the call, k [B, G, C, D], v."""

    columns: Tensor
    k: Tensor
    v: Tensor


def _before(call: Call) -> int:
    """How many key columns stand before the first query."""
    return min(max(first_query(call.mask) - call.mask.k_start, 0), call.mask.kv_len)


def _prefill(sinks: int, window: int, call: Call) -> Cache:
    before = _before(call)
    at = torch.arange(before, device=call.k.device)
    columns = at[(at + call.mask.k_start < sinks) | (at >= before - (window - 1))]
    return Cache(columns, call.k.index_select(2, columns), call.v.index_select(2, columns))


def _resume(pattern: Pattern, call: Call, cache: Cache) -> Output:
    """The queries against what the cache holds and the keys from the first query on."""
    before, heads = _before(call), call.q.shape[1]
    columns = torch.cat([cache.columns, torch.arange(before, call.mask.kv_len, device=call.k.device)])
    k = torch.cat([cache.k, call.k[:, :, before:]], 2)
    v = torch.cat([cache.v, call.v[:, :, before:]], 2)
    mask = patterned(replace(call, mask=call.mask.to(call.q.device)), pattern).mask
    b, h = (torch.arange(n, device=k.device) for n in mask.shape)
    rows = torch.arange(mask.q_len, device=k.device)
    seen = mask.allows(b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), rows[:, None], columns)
    weights = softmax_rows(hide(call.q @ repeat_heads(k, heads).mT * call.scale, seen))
    return Output(weights @ repeat_heads(v, heads))


def _not_causal(call: Call) -> str | None:
    return None if call.mask.causal else "streaming is causal only: its cache knows what came before; add `causal`"


def implementations(sinks: int = 4, window: int = 256) -> list[Implementation]:
    """All forms. Raises ValueError for a window below 1 or fewer sinks than none."""
    if sinks < 0:
        raise ValueError(f"option sinks cannot be negative; got {sinks}")
    pattern = sinks_or_recent(sinks, checked("window", window))
    variant = variant_over(
        "streaming",
        pattern,
        SOFTMAX,
        why_not=_not_causal,
        paper="Xiao et al. 2023, arXiv 2309.17453",
        formula="A = softmax(scale · q kᵀ) over j < sinks or i - j < window, j ≤ i",
        cost="time and memory O(I·(sinks + window + block)) in a band, a token O(sinks + window); O(I·J) dense",
    )
    dense = softmax_kernel("naive"), softmax_kernel("sdpa_flash")  # the pattern as a mask: every pair is computed
    cached = {"prefill": partial(_prefill, sinks, window), "resume": partial(_resume, pattern)}
    banded = tiled_by_block(
        "banded", variant, partial(_plan, sinks, window), growth=Growth(1, 1, "sinks and window fixed"), **cached
    )
    return [*over(variant, pattern, *dense, tiles()), banded]
