"""Softmax attention of tiles: a few query rows against the few keys that their positions let them see.

A tile is a small rectangle of scores whose rows and columns may lie anywhere. An entrant says, by absolute positions,
which keys each handful of queries may see at all; what the mask hides among these is worked out once, in `prepare`, and
a run computes the tiles and nothing else. Tiles side by side cover the query rows; several such covers over disjoint
keys (a window, then columns) are joined by their log-sum-exp. Letters beyond the contract's: T tiles, R rows of
a tile, C columns of a tile. Shared by the entrants of variants/sparse whose pattern is fixed by position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, merge_by_lse, repeat_heads, softmax_rows
from attention_impls.contract import Implementation, Output, Run, Support, Variant
from attention_impls.makers import patterned
from attention_impls.mask import Mask, Pattern
from attention_impls.tiling import checked

BLOCK = 64  # query rows of a tile where a kernel may choose


@dataclass(frozen=True, eq=False)
class Tiles:
    """Rows [1|H, T, R] against columns [1|H, T, C]; kept [1|H, T, R]: which rows are rows of the call.

    seen [1|B, 1|H, T, R, C]: which pairs count, None when all do. sure: every row sees some key.
    """

    rows: Tensor
    columns: Tensor
    kept: Tensor
    seen: Tensor | None
    sure: bool


Cover = Sequence[Tiles]
"""Tiles in which every query row stands at most once; a row in none of them sees nothing there."""

Plan = Callable[[Call], Sequence[Cover]]
"""A call with its mask on its device -> covers over disjoint keys (or keys that count as often as they come)."""


def first_query(mask: Mask) -> int:
    """The absolute position of row 0. Raises ValueError where sequences or tokens start apart."""
    if isinstance(mask.q_start, Tensor):
        raise ValueError("tiles are laid out by position: needs one start for all sequences, got one for each")
    return mask.q_start


def blocks(call: Call, block: int, aligned: bool = True) -> Tensor:
    """Absolute positions [T, block] that hold every query: from a multiple of `block` on, or from the first query."""
    first, device = first_query(call.mask), call.q.device
    begin = first // block * block if aligned else first
    return torch.arange(begin, first + call.mask.q_len, block, device=device)[:, None] + torch.arange(
        block, device=device
    )


def around(queries: Tensor, back: int, ahead: int) -> Tensor:
    """Positions [T, C] of all keys from `back` before each tile's first query to `ahead` after its last."""
    return queries[:, :1] + torch.arange(-back, queries.shape[1] + ahead, device=queries.device)


def windowed(mask: Mask, queries: Tensor, window: int, first: int) -> Tensor:
    """Positions [T, C] of the keys of |i - j| < window for consecutive queries [T, R], and of the `first` keys of all.

    A key that is both stands among the first ones only.
    """
    keys = around(queries, window - 1, 0 if mask.causal else window - 1)
    apart = keys.masked_fill(keys < first, mask.k_start - 1)  # a position that the call does not have
    return torch.cat([torch.arange(first, device=keys.device).expand(len(keys), -1), apart], 1)


def lay(mask: Mask, queries: Tensor, keys: Tensor) -> Tiles:
    """Tiles of the queries at absolute positions [T, R] or [1|H, T, R] against the keys at [T, C] or [1|H, T, C].

    Positions that the call does not have are allowed, and hidden. The mask's own pattern counts.
    """
    rows, columns = (x if x.dim() == 3 else x.unsqueeze(0) for x in (queries, keys))
    rows, columns = rows - first_query(mask), columns - mask.k_start
    kept, inside = (rows >= 0) & (rows < mask.q_len), (columns >= 0) & (columns < mask.kv_len)
    rows, columns = rows.clamp(0, mask.q_len - 1), columns.clamp(0, mask.kv_len - 1)
    b = torch.arange(mask.shape[0], device=rows.device).view(-1, 1, 1, 1, 1)
    h = torch.arange(mask.shape[1], device=rows.device).view(1, -1, 1, 1, 1)
    seen = mask.allows(b, h, rows[None, ..., None], columns[None, :, :, None]) & inside[None, :, :, None]
    return Tiles(rows, columns, kept, None if bool(seen.all()) else seen, bool(seen.any(-1).all()))


def tiled(name: str, variant: Variant, plan: Plan, **facts: Any) -> Implementation:
    """The implementation that computes the tiles of `plan`; the variant's own pattern is part of the mask it gets."""
    return Implementation(name, variant, partial(_prepared, plan, variant.pattern), SUPPORT, **facts)


def tiled_by_block(
    name: str, variant: Variant, plan: Callable[[int, Call], Sequence[Cover]], **facts: Any
) -> Implementation:
    """`tiled` with an option `block`, rows of a tile, handed to the plan. It raises ValueError for one below 1."""

    def configure(block: int = BLOCK) -> Implementation:
        return tiled(name, variant, partial(plan, checked("block", block)), configure=configure, **facts)

    return configure()


def _one_start(call: Call) -> str | None:
    apart = isinstance(call.mask.q_start, Tensor)
    return "lays its tiles out by position: it needs one start for all sequences" if apart else None


SUPPORT = Support(starts=frozenset({"zero", "aligned", "any"}), lse="differentiable", why_not=_one_start)


def _prepared(plan: Plan, pattern: Pattern | None, call: Call, lse: bool) -> Run:
    own = replace(call, mask=call.mask.to(call.q.device))
    covers = [(cover, _places(cover, call.q.shape[2])) for cover in plan(patterned(own, pattern) if pattern else own)]

    def run(call: Call) -> Output:
        parts = [_covered(call, cover, places, lse or len(covers) > 1) for cover, places in covers]
        if len(parts) == 1:
            return parts[0]
        out, total = merge_by_lse([p.out for p in parts], [p.lse for p in parts if p.lse is not None])
        return Output(out, total if lse else None)

    return run


def _places(cover: Cover, rows: int) -> Tensor:
    """[1|H, I]: where each query row stands among the rows of all tiles, -1 where in none."""
    heads = max(tiles.rows.shape[0] for tiles in cover)
    at = [torch.where(t.kept, t.rows, rows).flatten(1).expand(heads, -1) for t in cover]
    into = torch.cat(at, 1)
    found = torch.full((heads, rows + 1), -1, device=into.device)
    order = torch.arange(into.shape[1], device=into.device).expand_as(into)
    return found.scatter_(1, into, order)[:, :rows]


def _covered(call: Call, cover: Cover, places: Tensor, lse: bool) -> Output:
    parts = [_attended(call, tiles, lse) for tiles in cover]
    out = _in_order(torch.cat([part.out for part in parts], 2), places, 0.0)
    if not lse:
        return Output(out)
    total = torch.cat([part.lse for part in parts if part.lse is not None], 2)
    return Output(out, _in_order(total.unsqueeze(-1), places, float("-inf")).squeeze(-1))


def _in_order(x: Tensor, places: Tensor, nothing: float) -> Tensor:
    """x [B, H, T·R, E] -> [B, H, I, E] by `places`."""
    found = _taken(x, places.clamp_min(0).unsqueeze(1), x.shape[1]).squeeze(2)
    return found.masked_fill((places < 0).unsqueeze(-1), nothing)


def _attended(call: Call, tiles: Tiles, lse: bool) -> Output:
    heads = call.q.shape[1]
    q = _taken(call.q, tiles.rows, heads)  # [B, H, T, R, D]
    k, v = (_taken(x, tiles.columns, heads) for x in (call.k, call.v))  # [B, H, T, C, D]
    logits = hide(q @ k.mT * call.scale, tiles.seen)
    weights = torch.softmax(logits, -1) if tiles.sure else softmax_rows(logits)
    return Output((weights @ v).flatten(2, 3), lse_rows(logits).flatten(2, 3) if lse else None)


def _taken(x: Tensor, at: Tensor, heads: int) -> Tensor:
    """x [B, G, N, D] at [1|H, T, C] -> [B, H, T, C, D]: rows shared by all heads, or of each head its own."""
    flat = at.flatten(1)
    if len(flat) == 1:
        found = repeat_heads(x.index_select(2, flat[0]), heads)
    else:
        found = repeat_heads(x, heads).gather(2, flat[None, :, :, None].expand(len(x), -1, -1, x.shape[3]))
    tiles: Tensor = found.unflatten(2, at.shape[1:])
    return tiles


def masked_by(variant: Variant, kept: Callable[[Call], Tensor], *softmax: Implementation) -> list[Implementation]:
    """Each kernel of softmax as one of `variant`, told its pairs as a mask of every pair, made once in `prepare`.

    kept(call) -> bool [1|B, 1|H, I, J] reads positions and constant parameters only.
    """

    def told(call: Call) -> Call:
        meta = call.q.device.type == "meta"  # where a mask's lengths stay numbers, for support is asked about them
        mask, own = call.mask if meta else call.mask.to(call.q.device), kept(call)
        joined = own if mask.dense is None else own & mask.dense
        return replace(call, mask=replace(mask, dense=joined), parameters={}, axes={})

    def one(inner: Implementation) -> Implementation:
        def refusal(call: Call, direction: str) -> str | None:
            return (inner.refusal or inner.support.refuses)(told(call), direction)

        def prepare(call: Call, lse: bool) -> Run:
            return inner.prepare(told(call), lse)

        return replace(inner, variant=variant, prepare=prepare, refusal=refusal, configure=None)

    return [one(inner) for inner in softmax]
