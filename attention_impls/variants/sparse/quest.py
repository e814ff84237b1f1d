"""Quest: each query attends to the pages of keys whose bounds let a key fit it best.

Keys are cut into pages of `page` by position from 0 on. With m and M the smallest and the largest value that the
keys of page n which query i may see take in each channel, u_in = Σ_d max(q_id m_d, q_id M_d) is at least any q_i·k_j of
that page. A_i = softmax over visible keys in the `chosen` pages with the largest u_in of scale · q_i·k_j. Of equal
bounds, as float32 numbers worked out in float64, the earlier page is taken; the choice has no gradient.
With as many pages as there are it is `softmax`. Not continuous: a small change may exchange one page for another.

Source: Tang et al. 2024, "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", arXiv 2406.10774,
where it serves decoding: one query that sees every cached key. Under a causal mask of many queries the page a query
stands in is bounded by the keys up to its own, as it was when that query came last. Options: page, chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_impls.call import Call, hide
from attention_impls.choosing import (
    Choose,
    among_best,
    best,
    block_columns,
    chosen_blocks,
    dense,
    exact,
    gathered,
    may_see,
    picked,
    products,
    within_length,
)
from attention_impls.contract import Implementation, Support
from attention_impls.makers import softmax_of
from attention_impls.tiling import checked, spans


def _logits(page: int, chosen: int, call: Call, rows: Tensor) -> Tensor:
    """The definition: logits in the chosen pages, -inf elsewhere; bounds over the keys that each row sees."""
    q, visible = call.q[:, :, rows], call.mask.visible(rows)
    bounds = []
    for lo, hi in spans(call.k.shape[2], page):
        keys = exact(call.k)[:, :, None, lo:hi].expand(-1, -1, len(rows), -1, -1)  # [B, H, R, page, D]
        unseen = torch.zeros(1, 1, 1, hi - lo, dtype=torch.bool) if visible is None else ~visible[..., lo:hi]
        smallest = keys.masked_fill(unseen.unsqueeze(-1), float("inf")).amin(-2)
        largest = keys.masked_fill(unseen.unsqueeze(-1), float("-inf")).amax(-2)
        bound = torch.maximum(exact(q) * smallest, exact(q) * largest).sum(-1)
        bounds.append(bound.masked_fill(unseen.all(-1), float("-inf")))
    kept = among_best(torch.stack(bounds, -1), chosen)
    return hide(q @ call.k.mT * call.scale, kept.repeat_interleave(page, -1)[..., : call.k.shape[2]])


@dataclass(frozen=True, eq=False)
class _Bounds:
    """float64 bounds of pages: `low`, `high` [B, G, J, D] of each page's keys up to each column, those past their
    sequence's length left out. What a page has at its last column holds for all of it."""

    page: int
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, page: int, call: Call) -> _Bounds:
        keys, inside = exact(call.k), within_length(call.mask, call.k.device)
        low = keys if inside is None else keys.masked_fill(~inside, float("inf"))
        high = keys if inside is None else keys.masked_fill(~inside, float("-inf"))
        fill = (0, 0, 0, -keys.shape[2] % page)
        low = pad(low, fill, value=float("inf")).unflatten(2, (-1, page)).cummin(3).values
        high = pad(high, fill, value=float("-inf")).unflatten(2, (-1, page)).cummax(3).values
        empty = low > high  # a page without keys so far bounds nothing: hidden later, finite until then
        return cls(page, low.masked_fill(empty, 0.0).flatten(2, 3), high.masked_fill(empty, 0.0).flatten(2, 3))

    def whole_pages(self, q: Tensor) -> Tensor:
        """q [B, H, R, D] -> the bound of every whole page [B, H, R, N]."""
        low, high = (x[:, :, self.page - 1 :: self.page] for x in (self.low, self.high))
        return products(q.clamp_min(0.0), high) + products(q.clamp_max(0.0), low)

    def so_far(self, q: Tensor, at: Tensor) -> Tensor:
        """The bound [B, H, R] of the page that column `at` [1|B, R] lies in, of its keys up to there."""
        at = at[:, None, :, None].expand(q.shape[0], self.low.shape[1], -1, 1)
        low, high = (
            picked(x, at).squeeze(3).repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (self.low, self.high)
        )
        return (q.clamp_min(0.0) * high + q.clamp_max(0.0) * low).sum(-1)


def _chosen(chosen: int, bounds: _Bounds, part: Call) -> Tensor:
    """Pages [B, H, R, chosen] of each row of `part`."""
    q, rows = exact(part.q), part.q.shape[2]
    scores = bounds.whole_pages(q)
    first = torch.arange(scores.shape[-1], device=q.device) * bounds.page  # [N], the first column of each page
    if part.mask.causal:
        at = part.mask.q_positions(torch.arange(rows, device=q.device)).view(-1, rows)
        own = (at // bounds.page)[:, None, :, None] == first // bounds.page
        column = at.clamp(0, bounds.low.shape[2] - 1)
        scores = torch.where(own, bounds.so_far(q, column).unsqueeze(-1), scores)
        scores = scores.masked_fill(first > at[:, None, :, None], float("-inf"))
    if part.mask.key_lengths is not None:
        scores = scores.masked_fill(first >= part.mask.key_lengths.view(-1, 1, 1, 1), float("-inf"))
    return best(scores, chosen)


def _chooser(page: int, chosen: int, call: Call) -> Choose:
    bounds, keys = _Bounds.of(page, call), call.k.shape[2]

    def choose(part: Call) -> tuple[Tensor, Tensor]:
        at, exist = block_columns(_chosen(chosen, bounds, part), page, keys)
        return at, exist & may_see(part.mask, at)

    return choose


def _kept(page: int, chosen: int, call: Call) -> Tensor:
    return chosen_blocks(_chosen(chosen, _Bounds.of(page, call), call), page, call.k.shape[2])


def _not_from_zero(call: Call) -> str | None:
    return "quest counts pages from key 0 on: it takes no keys that start elsewhere" if call.mask.k_start else None


def implementations(page: int = 16, chosen: int = 4) -> list[Implementation]:
    """Both forms for `chosen` pages of `page` keys a query. Raises ValueError for a size below 1."""
    checked("page", page)
    checked("chosen", chosen)
    variant = softmax_of(
        "quest",
        partial(_logits, page, chosen),
        couples=frozenset({"keys"}),
        masks=frozenset({"full", "causal", "key_lengths", "empty_rows"}),
        continuous=False,
        why_not=_not_from_zero,
        paper="Tang et al. 2024, arXiv 2406.10774",
        formula="A = softmax over the pages with the largest Σ_d max(q_d min_d, q_d max_d) of scale · q·k",
        cost="time O(J·D + I·(J/page·D + chosen·page·(D+E))); memory O(J·D + rows·chosen·page·(D+E)); dense O(I·J)",
        approximates="softmax",
    )
    support = Support(masks=variant.masks, lse="differentiable")
    keep, chooser = partial(_kept, page, chosen), partial(_chooser, page, chosen)
    return [dense(variant, keep, support), gathered(variant, chooser, support)]
