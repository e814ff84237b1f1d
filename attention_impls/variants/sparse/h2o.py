"""Heavy hitters (H2O): a cache of fixed size that keeps the last keys and those that drew most attention so far.

Tokens come one after another. Query i attends to the keys kept before it and its own, A_i = softmax over them of
scale · q_i·k_j, and each key's account grows by its weight, a_j ← a_j + A_ij. Then the keys kept are the last `recent`
ones and, of those before, the `heavy` with the largest accounts; what is dropped never comes back. Accounts
are kept in float64 without gradient and compared as float32 numbers: of equals the earlier key stays. So a query
attends to at most heavy + recent + 1 keys, and who is kept depends on all queries before. Causal self-attention from
position 0 only. With heavy + recent of at least the number of keys less one it is causal `softmax`. Not continuous.

Source: Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of LLMs", arXiv 2306.14048:
its greedy eviction, with the split of the budget into heavy and recent keys of the published code.
Options: heavy, recent.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, hide, softmax_rows
from attention_impls.choosing import (
    Choose,
    among_best,
    dense,
    exact,
    gathered,
    may_see,
    picked,
    ranks,
    within_length,
)
from attention_impls.contract import Growth, Implementation, Support
from attention_impls.makers import softmax_of
from attention_impls.tiling import checked


def _logits(heavy: int, recent: int, call: Call, rows: Tensor) -> Tensor:
    """The definition: logits of the keys that each of `rows` finds in the cache, -inf elsewhere."""
    last = int(rows.max()) + 1 if len(rows) else 0
    at = torch.arange(call.k.shape[2])
    account = torch.zeros(*call.q.shape[:2], len(at), dtype=torch.float64)  # [B, H, J]
    kept = torch.zeros_like(account, dtype=torch.bool)
    found = []
    for i in range(last):
        seen = kept | (at == i)
        if call.mask.key_lengths is not None:
            seen = seen & (at < call.mask.key_lengths.view(-1, 1, 1))
        logits = (exact(call.k) @ exact(call.q[:, :, i, :, None])).squeeze(-1) * call.scale
        account = account + softmax_rows(hide(logits, seen))
        before = seen & (at <= i - recent)
        kept = (seen & (at > i - recent)) | (before & among_best(hide(account, before), heavy))
        found.append(seen)
    return hide(call.q[:, :, rows] @ call.k.mT * call.scale, torch.stack(found, 2)[:, :, rows])


def _slots(heavy: int, recent: int, call: Call) -> Tensor:
    """Columns [B, H, I, C] in the cache's C slots at every query; a slot not used yet repeats the query's own key.

    One key enters at every step, and once there are more than `heavy` before the recent ones, one leaves: hidden
    keys, whose account is zero, first. A step reads C keys, so that all take O(I·C·D).
    """
    batch, heads, tokens = call.q.shape[:3]
    size = min(heavy + recent + 1, tokens)
    q, k = exact(call.q), exact(call.k)
    inside = within_length(call.mask, k.device)
    lengths = tokens if inside is None else inside.sum(2).view(-1, 1, 1)
    at = torch.zeros(batch, heads, size, dtype=torch.long, device=k.device)
    account = torch.zeros(batch, heads, size, dtype=torch.float64, device=k.device)
    places, out = torch.arange(size, device=k.device), []
    free = torch.zeros(batch, heads, 1, dtype=torch.long, device=k.device)
    for i in range(tokens):
        at, account = at.scatter(-1, free, i), account.scatter(-1, free, 0.0)
        used = places <= i
        logits = (picked(k, at.unsqueeze(2)).squeeze(2) @ q[:, :, i, :, None]).squeeze(-1) * call.scale
        account = account + softmax_rows(hide(logits, used & (at < lengths)))
        out.append(torch.where(used, at, i))
        leaving = ranks(account, at, tokens).masked_fill(at > i - recent, torch.iinfo(torch.int64).max)
        free = leaving.argmin(-1, keepdim=True) if i + 1 >= size else torch.full_like(free, i + 1)
    return torch.stack(out, 2)


def _chooser(heavy: int, recent: int, call: Call) -> Choose:
    """Who is in the cache is settled for all queries first; what they then read has gradients and no order."""
    at = _slots(heavy, recent, call)
    slots = torch.arange(at.shape[-1], device=at.device)

    def choose(part: Call) -> tuple[Tensor, Tensor]:
        lo = int(part.mask.q_start) if not isinstance(part.mask.q_start, Tensor) else 0
        rows = torch.arange(lo, lo + part.q.shape[2], device=at.device)
        mine = at[:, :, rows]
        return mine, (slots <= rows.unsqueeze(-1)) & may_see(part.mask, mine)

    return choose


def _kept(heavy: int, recent: int, call: Call) -> Tensor:
    """Bool [B, H, I, J] from the slots."""
    at = _slots(heavy, recent, call)
    kept = torch.zeros((*at.shape[:3], call.k.shape[2]), dtype=torch.bool, device=at.device)
    return kept.scatter_(-1, at, True)


def _why_not(call: Call) -> str | None:
    if not call.mask.causal:
        return "h2o is causal only: its cache knows what came before; add `causal`"
    start = call.mask.q_start
    if isinstance(start, Tensor) or start or call.mask.k_start:
        return "h2o needs every query from position 0 on: their attention decides what is kept"
    return None


def implementations(heavy: int = 64, recent: int = 64) -> list[Implementation]:
    """Both forms for a cache of heavy + recent keys and the own one. Raises ValueError for a size below 1."""
    checked("heavy", heavy)
    checked("recent", recent)
    variant = softmax_of(
        "h2o",
        partial(_logits, heavy, recent),
        couples=frozenset({"keys", "queries"}),
        masks=frozenset({"causal", "key_lengths", "empty_rows"}),
        continuous=False,
        self_only=True,
        why_not=_why_not,
        paper="Zhang et al. 2023, arXiv 2306.14048",
        formula="A = softmax of scale · q·k over the last `recent` keys and the `heavy` with the most attention so far",
        cost="time O(I·(heavy + recent)·(D+E)) in I steps; memory O(I·(heavy + recent)·(D+E)); dense O(I·J) beside",
        approximates="softmax",
    )
    support = Support(masks=variant.masks, lse="differentiable", cross=False)
    keep, chooser = partial(_kept, heavy, recent), partial(_chooser, heavy, recent)
    return [dense(variant, keep, support), gathered(variant, chooser, support, growth=Growth(1, 1, "cache fixed"))]
