"""Keys chosen by content: comparing scores, taking the best, and softmax attention over what was taken.

Choices are made in one way in every dtype: scores are worked out in float64 without gradient and compared as float32
numbers, the earlier of equals first. So rounding flips no choice, equal keys tie exactly, and
every kernel chooses what the definition does. Softmax over the chosen runs in float32 at least. Shared by the
entrants of variants/sparse. Letters beyond the contract's: C chosen keys, S heads that choose
(a multiple of G that divides H: the query heads of one choice share its gathered keys).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_rows, wide
from attention_impls.contract import Growth, Implementation, Output, Run, Support, Variant
from attention_impls.mask import Mask
from attention_impls.tiling import checked, spans

Choose = Callable[[Call], tuple[Tensor, Tensor]]
"""Some rows of a call -> key columns [B, S, R, C] and which of them are seen, bool [B, S, R, C]."""

Chooser = Callable[[Call], Choose]
"""The whole call, from which what all rows share (means of blocks, bounds of pages) is made once."""

ROWS = 64  # query rows whose keys are gathered together
CHOSEN = Growth(bytes=1, at="keys a query fixed")  # every pair is scored for the choice, some rows at a time


def exact(x: Tensor) -> Tensor:
    """In float64, without gradient: what choices are made from."""
    return x.detach().double()


def products(q: Tensor, k: Tensor) -> Tensor:
    """q [B, H, R, D], k [B, G, J, D] -> [B, H, R, J], key heads shared by their groups."""
    by_group: Tensor = q.unflatten(1, (k.shape[1], -1)) @ k.unsqueeze(2).mT
    return by_group.flatten(1, 2)


def ranks(scores: Tensor, places: Tensor, size: int) -> Tensor:
    """Whole numbers, no two alike, that rise with the float32 `scores` and, among equals, fall with places < `size`."""
    bits = (scores.float() + 0.0).view(torch.int32).long()  # + 0.0: minus zero is zero
    rising = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)  # rises with the number that the bits spell
    return rising * size - places


def best(scores: Tensor, count: int) -> Tensor:
    """Indices [..., min(count, J)] of the largest `scores` [..., J], compared as float32; of equals the earlier."""
    size = scores.shape[-1]
    return ranks(scores, torch.arange(size, device=scores.device), size).topk(min(count, size)).indices


def among_best(scores: Tensor, count: int) -> Tensor:
    """True [..., J] for the `count` largest scores, by sorting all of them: what definitions say `best` must give."""
    order = scores.float().sort(dim=-1, descending=True, stable=True).indices
    rank = torch.empty_like(order)
    rank.scatter_(-1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order))
    return rank < count


def picked(x: Tensor, at: Tensor) -> Tensor:
    """x [B, G, N, ...] at indices [B, S, R, C] -> [B, S, R, C, ...]: head s reads key/value head s * G // S."""
    batch, heads = at.shape[:2]
    b = torch.arange(batch, device=x.device).view(-1, 1, 1, 1)
    g = torch.arange(heads, device=x.device).view(1, -1, 1, 1) * x.shape[1] // heads
    return x[b, g, at]


def may_see(mask: Mask, at: Tensor) -> Tensor:
    """Bool [B, S, R, C]: which key columns `at` the mask shows each of its rows. Head s is the mask's head s."""
    batch, heads, rows = at.shape[:3]
    b = torch.arange(batch, device=at.device).clamp_max(mask.shape[0] - 1)
    h, r = torch.arange(heads, device=at.device), torch.arange(rows, device=at.device)
    return mask.allows(b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), r.view(1, 1, -1, 1), at)


def shown(mask: Mask, device: torch.device) -> Tensor | None:
    """The mask's boolean form [1|B, 1|H, R, J] on `device` (a rule alone makes it on the CPU), None when it is full."""
    visible = mask.visible()
    return visible if visible is None else visible.to(device)


def within_length(mask: Mask, device: torch.device) -> Tensor | None:
    """Bool [B, 1, J, 1]: which keys lie within their sequence's length; None when all do."""
    if mask.key_lengths is None:
        return None
    at = mask.k_start + torch.arange(mask.kv_len, device=device)
    return (at < mask.key_lengths.to(device).unsqueeze(-1))[:, None, :, None]


def block_columns(blocks: Tensor, block: int, keys: int) -> tuple[Tensor, Tensor]:
    """Blocks [B, S, R, C] of `block` keys each -> their columns [B, S, R, C·block], and which of these exist."""
    at = (blocks.unsqueeze(-1) * block + torch.arange(block, device=blocks.device)).flatten(-2)
    return at.clamp_max(keys - 1), at < keys


def chosen_blocks(blocks: Tensor, block: int, keys: int) -> Tensor:
    """Blocks [B, S, R, C] of `block` keys each -> bool [B, S, R, J]: the keys that lie in one of them."""
    kept = torch.zeros((*blocks.shape[:3], -(-keys // block)), dtype=torch.bool, device=blocks.device)
    return kept.scatter_(-1, blocks, True).repeat_interleave(block, -1)[..., :keys]


def attended(call: Call, at: Tensor, seen: Tensor, lse: bool = False) -> Output:
    """Softmax attention of every row over its own columns `at` alone, O(R·C) a head; out in float32 at least.

    What was gathered, C·(D + E) numbers a row, is gathered again for the backward instead of being kept.
    """
    told = (call.q, call.k, call.v, at, seen, call.scale, lse)
    found: Output = checkpoint(_attended, *told, use_reentrant=False, preserve_rng_state=False)
    return found


def _attended(
    queries: Tensor, keys: Tensor, values: Tensor, at: Tensor, seen: Tensor, scale: float, lse: bool
) -> Output:
    q = wide(queries).unflatten(1, (at.shape[1], -1)).transpose(2, 3)  # [B, S, R, H/S, D]
    logits = hide(q @ wide(picked(keys, at)).mT * scale, seen.unsqueeze(3))  # [B, S, R, H/S, C]
    out = softmax_rows(logits) @ wide(picked(values, at))
    total = lse_rows(logits).transpose(2, 3).flatten(1, 2) if lse else None
    return Output(out.transpose(2, 3).flatten(1, 2), total)


Keep = Callable[[Call], Tensor]
"""The whole call -> bool [B, S, I, J], S = 1 or H: the keys that each row chose, whatever the mask shows it."""


def dense(variant: Variant, keep: Keep, support: Support) -> Implementation:
    """Every logit materialised and hidden where its key was not chosen: what a gathered form saves is computed."""
    return Implementation("dense", variant, partial(_dense, keep), support)


def _dense(keep: Keep, call: Call, lse: bool) -> Run:
    mask = call.mask.to(call.q.device)
    visible = shown(mask, call.q.device)

    def run(call: Call) -> Output:
        kept = keep(replace(call, mask=mask))
        logits = products(wide(call.q), wide(call.k)) * call.scale
        logits = hide(logits, kept if visible is None else kept & visible)
        out = softmax_rows(logits) @ wide(repeat_heads(call.v, call.q.shape[1]))
        return Output(out.to(call.q.dtype), lse_rows(logits) if lse else None)

    return run


def gathered(
    variant: Variant, chooser: Chooser, support: Support, rows: int = ROWS, *, growth: Growth = CHOSEN
) -> Implementation:
    """`rows` query rows at a time against gathered copies of the keys that each of them chose."""
    checked("rows", rows)

    def configure(rows: int = ROWS) -> Implementation:
        return gathered(variant, chooser, support, rows, growth=growth)

    prepare = partial(_prepared, chooser, rows)
    return Implementation("gathered", variant, prepare, support, configure=configure, growth=growth)


def _prepared(chooser: Chooser, rows: int, call: Call, lse: bool) -> Run:
    mask = call.mask.to(call.q.device)
    bounds = spans(call.q.shape[2], rows)
    masks = [mask.rows(lo, hi) for lo, hi in bounds]

    def run(call: Call) -> Output:
        choose = chooser(replace(call, mask=mask))
        parts = [call.rows(lo, hi, part) for (lo, hi), part in zip(bounds, masks, strict=True)]
        found = [attended(part, *choose(part), lse) for part in parts]
        out = torch.cat([one.out for one in found], 2).to(call.q.dtype)
        return Output(out, torch.cat([one.lse for one in found if one.lse is not None], 2) if lse else None)

    return run
