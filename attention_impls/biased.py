"""Attention that depends on where query and key stand: every tile or block of a call is told its absolute positions.

`positioned` gives both kernels of a score that reads positions; `biased` those of scale · q kᵀ plus a bias, which is
built for one tile at a time: no [H, I, J] of it is kept, and its parameters get their gradients tile by tile. `whole`
and `blocks` are for what is no score alone (values that depend on distance, keys that depend on one another).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call, softmax_for, wide
from attention_impls.contract import Growth, Implementation, Lse, Output, Run, Support, Variant
from attention_impls.makers import recast
from attention_impls.mask import Mask
from attention_impls.scored import Score, lse_of, naive
from attention_impls.scored_tiles import tiled
from attention_impls.tiling import checked, spans

Q_AT, K_AT = "q_at", "k_at"  # the names under which positions travel with a call

Bias = Callable[[Call], Tensor]
"""A placed call or a tile of one, its heads expanded, in float32 at least -> what is added [1|B, 1|H, R, C]."""


def placed(call: Call) -> Call:
    """The call with its positions as two more parameters, so that cutting the call cuts them: [1|B, I] and [J]."""
    device = call.q.device
    q_at = call.mask.q_positions(torch.arange(call.q.shape[2], device=device)).to(device)
    k_at = call.mask.k_start + torch.arange(call.k.shape[2], device=device)
    own = {**call.parameters, Q_AT: q_at.view(-1, call.q.shape[2]), K_AT: k_at}
    return replace(call, parameters=own, axes={**call.axes, Q_AT: "B I", K_AT: "J"})


def distances(part: Call) -> Tensor:
    """i − j of a placed call or tile, whole numbers [1|B, 1, R, C]: positive where the key came before."""
    return part.parameters[Q_AT][:, None, :, None] - part.parameters[K_AT]


def row_distances(call: Call, rows: Tensor) -> Tensor:
    """i − j of the query rows `rows` of any call [1|B, 1, R, J]: what definitions ask."""
    at = call.mask.q_positions(rows).view(-1, 1, len(rows), 1)
    return at - (call.mask.k_start + torch.arange(call.k.shape[2], device=rows.device))


def by_distance(part: Call, values: Callable[[Tensor], Tensor]) -> Tensor:
    """What depends on i − j alone: values(whole numbers [...]) -> [H, ...], as [1|B, H, R, C] of a placed call or tile.

    Asked of R + C distances and laid out by a shift; of every pair only where each token has a position of its own.
    """
    if apart(part):
        return values(distances(part)[:, 0]).transpose(0, 1)
    rows, keys = part.q.shape[2], part.k.shape[2]
    line = values(descending(part)).transpose(0, 1).unsqueeze(-2)  # [1|B, H, 1, R + C]
    return shifted(line.expand(*line.shape[:2], rows, rows + keys), keys)


def apart(part: Call) -> bool:
    """True where queries do not stand side by side: each has a start of its own."""
    starts = part.mask.q_start  # of a tile too, whose mask is the whole call's
    return isinstance(starts, Tensor) and starts.dim() == 2


def descending(part: Call) -> Tensor:
    """The R + C distances of a placed call whose queries stand side by side, the largest first [1|B, R + C]."""
    largest = part.parameters[Q_AT][:, -1:] - part.parameters[K_AT][0]
    return largest - torch.arange(part.q.shape[2] + part.k.shape[2], device=largest.device)


def shifted(descending: Tensor, keys: int) -> Tensor:
    """[..., R, R + C] by distance, the largest first -> [..., R, C] by key: row r moved left by R − 1 − r places.

    Leaving out the first R − 1 numbers and reading rows that are one shorter does it without an index.
    """
    rows, width = descending.shape[-2:]
    flat = descending.flatten(-2)[..., rows - 1 : rows * width - 1]
    by_row: Tensor = flat.unflatten(-1, (rows, width - 1))
    return by_row[..., :keys]


def positioned(variant: Variant, score: Score) -> list[Implementation]:
    """`naive` (every score in memory) and `tiled` (one tile at a time) of a score that is handed placed calls."""
    return recast(variant, placed, naive(variant, score), tiled(variant, score))


def biased(variant: Variant, bias: Bias) -> list[Implementation]:
    """`naive` and `tiled` of softmax(scale · q kᵀ + bias)."""

    def score(part: Call) -> Tensor:
        return torch.add(wide(bias(part)), part.q @ part.k.mT, alpha=part.scale)

    return positioned(variant, score)


Attend = Callable[[Call, "Seen", bool], Output]
"""(placed rows of a call, heads expanded, in float32 at least; what they see; whether LSE is wanted) -> Output."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Query rows lo..hi and keys 0..keys, their boolean form and the softmax that fits it."""

    lo: int
    hi: int
    keys: int
    visible: Tensor | None
    softmax: Callable[[Tensor], Tensor]


def _seen(mask: Mask, lo: int, hi: int) -> Seen:
    rows = mask.rows(lo, hi)
    part = rows.keys(0, max(rows.last_visible(), 1)).simplified()  # one key at least, even if nobody sees it
    return Seen(lo, hi, part.kv_len, part.visible(), softmax_for(part))


def whole(variant: Variant, name: str, attend: Attend, *, says: Lse | None = None) -> Implementation:
    """`attend` on all queries at once; `says` is what it offers of the LSE where that is not all there is."""

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        seen = Seen(0, mask.q_len, mask.kv_len, mask.visible(), softmax_for(mask))

        def run(call: Call) -> Output:
            made = attend(placed(call).expanded().map(wide), seen, lse)
            return Output(made.out.to(call.q.dtype), made.lse)

        return run

    return Implementation(name, variant, prepare, Support(lse=says or lse_of(variant)))


def blocks(variant: Variant, attend: Attend, block: int = 64, *, says: Lse | None = None) -> Implementation:
    """`attend` on `block` queries at a time against the keys they may see, each computed again in the backward.

    `says` as of `whole`. Raises ValueError for a block below 1.
    """
    checked("block", block)

    def configure(block: int = 64) -> Implementation:
        return blocks(variant, attend, block, says=says)

    def part_of(call: Call, seen: Seen, lse: bool) -> Output:
        return attend(call.rows(seen.lo, seen.hi, call.mask).keys(0, seen.keys, call.mask), seen, lse)

    def prepare(call: Call, lse: bool) -> Run:
        plan = [_seen(call.mask.simplified().to(call.q.device), lo, hi) for lo, hi in spans(call.q.shape[2], block)]

        def run(call: Call) -> Output:
            own = placed(call).expanded().map(wide)
            parts: list[Output] = [  # nothing random inside: no random state need be kept
                checkpoint(part_of, own, seen, lse, use_reentrant=False, preserve_rng_state=False) for seen in plan
            ]
            out = torch.cat([part.out for part in parts], 2).to(call.q.dtype)
            return Output(out, torch.cat([part.lse for part in parts if part.lse is not None], 2) if lse else None)

        return run

    return Implementation(
        "blocks", variant, prepare, Support(lse=says or lse_of(variant)), configure=configure, growth=Growth(bytes=1)
    )
