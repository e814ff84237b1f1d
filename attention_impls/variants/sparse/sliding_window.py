"""Sliding window: exact softmax attention in which each query sees only the keys near its own position.

Query position i sees key position j where |i - j| < window. Under a causal mask that is the `window`
keys i - window + 1 … i, itself included (Mistral's convention); without one it is also the window - 1
keys after it, 2·window - 1 in all (each side counts itself). Positions are the mask's absolute ones.
A window of at least as many positions as there are is plain softmax attention.

Sources: Beltagy et al. 2020, arXiv 2004.05150 (Longformer, which counts window/2 on each side);
Jiang et al. 2023, arXiv 2310.06825 (Mistral).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_for
from attention_impls.contract import Growth, Implementation, Output, Run, Support, Variant
from attention_impls.makers import over, patterned, variant_over
from attention_impls.mask import Mask, Pattern
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked, spans
from attention_impls.variants.exact.tiles import tiles
from attention_impls.variants.scores.softmax import SOFTMAX


def near(window: int) -> Pattern:
    """|i - j| < window."""
    return lambda i, j: ((i - j) < window) & ((j - i) < window)


def implementations(window: int = 256) -> list[Implementation]:
    """Sliding-window attention for one window. Raises ValueError for a window below 1."""
    pattern = near(checked("window", window))
    variant = variant_over(
        "sliding_window",
        pattern,
        SOFTMAX,
        paper="Beltagy et al. 2020, arXiv 2004.05150; Jiang et al. 2023, arXiv 2310.06825",
        formula="A = softmax(scale · q kᵀ) over |i - j| < window (causal: window keys, self included)",
        cost="time and memory O(I·window) banded, O(I·J) with a dense mask",
    )
    dense = softmax_kernel("naive"), softmax_kernel("sdpa_flash")  # the window as a mask: every pair is computed
    return [*over(variant, pattern, *dense, tiles()), banded(variant, window)]


def banded(variant: Variant, window: int, block: int = 64) -> Implementation:
    """Blocks of `block` queries, each against the slice of keys its rows can see: O(I·(window + block)).

    Starts that differ by sequence widen the slice to what any of them sees.
    """
    checked("block", block)

    def configure(block: int = 64) -> Implementation:
        return banded(variant, window, block)

    def prepare(call: Call, lse: bool) -> Run:
        plan = _plan(patterned(call, near(window)).mask.to(call.q.device), window, block)

        def run(call: Call) -> Output:
            parts = [_attend(call, part, lse) for part in plan]
            out = torch.cat([part.out for part in parts], 2)
            return Output(out, torch.cat([part.lse for part in parts if part.lse is not None], 2) if lse else None)

        return run

    return Implementation(
        "banded",
        variant,
        prepare,
        Support(lse="differentiable"),
        configure=configure,
        growth=Growth(1, 1, "window and block fixed"),
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """Query rows lo..hi and the slice of key columns that holds all they see, with its boolean form and softmax."""

    lo: int
    hi: int
    keys: slice
    visible: Tensor | None
    softmax: Callable[[Tensor], Tensor]


def _plan(mask: Mask, window: int, block: int) -> list[_Part]:
    return [_part(mask, lo, hi, window) for lo, hi in spans(mask.q_len, block)]


def _part(mask: Mask, lo: int, hi: int, window: int) -> _Part:
    rows = mask.rows(lo, hi)
    begin = min(max(rows.first_query() - window + 1 - mask.k_start, 0), mask.kv_len)
    end = max(min(rows.last_query() + window - mask.k_start, rows.last_visible()), begin)
    part = rows.keys(begin, end)
    return _Part(lo, hi, slice(begin, end), part.visible(), softmax_for(part))


def _attend(call: Call, part: _Part, lse: bool) -> Output:
    """One block: softmax over its slice of keys, hidden where the window or the mask says so."""
    heads = call.q.shape[1]
    k, v = (repeat_heads(x[:, :, part.keys], heads) for x in (call.k, call.v))
    logits = hide(call.q[:, :, part.lo : part.hi] @ k.mT * call.scale, part.visible)
    return Output(part.softmax(logits) @ v, lse_rows(logits) if lse else None)
