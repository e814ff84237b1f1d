"""Native sparse attention: three softmax attentions of one query, over means of blocks, over chosen blocks and over
a window, added under gates.

Keys are cut into blocks of `block` by position from 0 on; k̃_n, ṽ_n are the means over block n, which a query sees once
it may see the block's last key. With p = softmax over seen blocks of scale · q·k̃, a query's importance of block n is
the mean of p_n over the `share` consecutive heads that choose together. It takes the `chosen` best blocks: its own,
the first and the one before its own always, in this order, then by importance, never one that it does not see
whole; of equals, as float32 numbers worked out in float64, the earlier. The choice has no gradient.
out = g_c Σ p_n ṽ_n + g_s softmax(scale · q·k over visible keys of chosen blocks) v + g_w softmax(… of the last
`window` keys, the own one included) v: a matrix A = g_c p P + g_s A_s + g_w A_w, P [N, J] the mean over each block.
Rows need not sum to 1. Gates in (0, 1), one for each token, head and branch. Causal only.

Source: Yuan et al. 2025, "Native Sparse Attention", arXiv 2502.11089. There the blocks that are compressed
overlap, by a learned map, and each branch has keys of its own. Here, as in flash-linear-attention, the map is the
mean, one size of block serves both branches, and all share k and v; packed documents would begin their own blocks
and are not offered. In the paper the heads of a key/value head choose together: say share = H/G. With all blocks
chosen and gates 0, 1, 0 it is causal `softmax`; with gates 0, 0, 1 causal `sliding_window`. Not continuous.
Options: block, chosen, window, share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_impls.call import Call, hide, repeat_heads, softmax_rows, wide
from attention_impls.choosing import (
    CHOSEN,
    ROWS,
    among_best,
    attended,
    best,
    block_columns,
    chosen_blocks,
    exact,
    may_see,
    products,
    shown,
)
from attention_impls.contract import Implementation, Output, Parameter, Run, Support, Variant
from attention_impls.tiling import checked, spans
from attention_impls.variants.sparse.sliding_window import banded, near

BRANCHES = ("compressed_gate", "chosen_gate", "window_gate")


@dataclass(frozen=True)
class _Sizes:
    block: int
    chosen: int
    window: int
    share: int


def _draw_gate(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=generator).sigmoid()


def _weights(sizes: _Sizes, call: Call, rows: Tensor) -> Tensor:
    """The definition: three maps [B, H, R, J] under their gates."""
    keys, q = call.k.shape[2], call.q[:, :, rows]
    visible = call.mask.visible(rows)
    assert visible is not None  # narrows the type: it is causal
    of_key = torch.arange(keys) // sizes.block
    blocks = torch.arange(int(of_key[-1]) + 1)
    pool = (of_key == blocks.unsqueeze(-1)).to(q.dtype) / sizes.block  # [N, J]
    last = (blocks + 1) * sizes.block - 1
    whole = visible[..., last.clamp_max(keys - 1)] & (last < keys)
    compressed = softmax_rows(hide(q @ (pool @ call.k).mT * call.scale, whole))
    logits = q @ call.k.mT * call.scale
    kept = _kept_by_definition(sizes, call, rows, pool, whole)[..., of_key]
    i, j = call.mask.q_positions(rows).view(-1, 1, len(rows), 1), torch.arange(keys)
    maps = (
        compressed @ pool,
        softmax_rows(hide(logits, kept & visible)),
        softmax_rows(hide(logits, visible & (i - j < sizes.window))),
    )
    gates = [call.parameters[name][:, :, rows].unsqueeze(-1) for name in BRANCHES]
    return gates[0] * maps[0] + gates[1] * maps[1] + gates[2] * maps[2]


def _kept_by_definition(sizes: _Sizes, call: Call, rows: Tensor, pool: Tensor, whole: Tensor) -> Tensor:
    """Bool [B, H, R, N]: the chosen blocks of every row."""
    q, means = exact(call.q[:, :, rows]), exact(pool) @ exact(call.k)
    p = softmax_rows(hide(q @ means.mT * call.scale, whole))
    shared = [heads.mean(1, keepdim=True).expand_as(heads) for heads in p.split(sizes.share, 1)]
    scores = hide(torch.cat(shared, 1), whole)
    own = (call.mask.q_positions(rows) // sizes.block).view(-1, 1, len(rows), 1)
    n = torch.arange(means.shape[2])
    for rank, always in ((2.0, n == own - 1), (3.0, (n == 0) & (own >= 0)), (4.0, n == own)):  # importance is at most 1
        scores = scores.masked_fill(always, rank)
    return among_best(scores, sizes.chosen) & ~scores.isneginf()


def _means(x: Tensor, block: int) -> Tensor:
    """[B, G, J, D] -> [B, G, N, D]: the mean of each block; what is said of a short last one nobody reads."""
    means: Tensor = pad(x, (0, 0, 0, -x.shape[2] % block)).unflatten(2, (-1, block)).mean(3)
    return means


def _whole_blocks(block: int, part: Call, count: int) -> Tensor:
    """Bool [B, 1, R, N]: which of `count` blocks each row of `part` sees whole."""
    last = torch.arange(1, count + 1, device=part.q.device) * block - 1
    batch, rows = part.q.shape[0], part.q.shape[2]
    at = last.clamp_max(part.k.shape[2] - 1).expand(batch, 1, rows, count)
    return may_see(part.mask, at) & (last < part.k.shape[2])


def _chosen(sizes: _Sizes, part: Call, means: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks [B, S, R, chosen] of each row, S = H/share or H, and which of them it may take."""
    p = softmax_rows(hide(products(exact(part.q), means) * part.scale, whole))
    if part.group % sizes.share == 0:
        p = p.unflatten(1, (-1, sizes.share)).mean(2)
    else:
        p = torch.cat([heads.mean(1, keepdim=True).expand_as(heads) for heads in p.split(sizes.share, 1)], 1)
    n = torch.arange(means.shape[2], device=p.device)
    positions = part.mask.q_positions(torch.arange(part.q.shape[2], device=p.device))
    own = (positions // sizes.block).view(-1, 1, part.q.shape[2], 1)
    always = 2.0 * (n == own - 1) + 3.0 * ((n == 0) & (own > 0)) + 6.0 * (n == own)  # the first may be the one before
    scores = torch.where(always > 0, always, p.masked_fill(~whole, float("-inf")))
    at = best(scores, sizes.chosen)
    return at, ~scores.gather(-1, at).isneginf()


def _compressed(part: Call, keys: Tensor, values: Tensor, whole: Tensor) -> Tensor:
    weights = softmax_rows(hide(products(wide(part.q), keys) * part.scale, whole))
    return weights @ repeat_heads(values, part.q.shape[1])


Attend = Callable[[Call, Tensor, Tensor], Tensor]
"""(rows of a call, chosen blocks, which of them count) -> out [B, H, R, E] of the chosen blocks' keys."""


def _gated(sizes: _Sizes, part: Call, means: tuple[Tensor, Tensor, Tensor], windowed: Tensor, attend: Attend) -> Tensor:
    """The three branches of some rows, added; means: of k in float64, of k and of v."""
    whole = _whole_blocks(sizes.block, part, means[0].shape[2])
    at, real = _chosen(sizes, part, means[0], whole)
    outs = (_compressed(part, means[1], means[2], whole), attend(part, at, real), windowed)
    gates = [part.parameters[name].unsqueeze(-1) for name in BRANCHES]
    return sum((g * o for g, o in zip(gates, outs, strict=True)), start=torch.zeros_like(windowed))


def _all_means(sizes: _Sizes, call: Call) -> tuple[Tensor, Tensor, Tensor]:
    return _means(exact(call.k), sizes.block), _means(wide(call.k), sizes.block), _means(wide(call.v), sizes.block)


def _dense(sizes: _Sizes, call: Call, lse: bool) -> Run:
    """Every pair materialised for the chosen blocks and once more for the window."""
    mask = call.mask.to(call.q.device)
    visible = shown(mask, call.q.device)
    assert visible is not None  # narrows the type: it is causal
    i = mask.q_positions(torch.arange(mask.q_len, device=call.q.device)).unsqueeze(-1)
    close = visible & near(sizes.window)(i, torch.arange(mask.kv_len, device=call.q.device)).view(
        -1, 1, mask.q_len, mask.kv_len
    )

    def attended_to(call: Call, seen: Tensor) -> Tensor:
        logits = hide(products(wide(call.q), wide(call.k)) * call.scale, seen)
        return softmax_rows(logits) @ wide(repeat_heads(call.v, call.q.shape[1]))

    def attend(call: Call, at: Tensor, real: Tensor) -> Tensor:
        kept = _only_real(at, real, sizes.block, call.k.shape[2])
        return attended_to(call, repeat_heads(kept, call.q.shape[1]) & visible)

    def run(call: Call) -> Output:
        call = replace(call, mask=mask)
        out = _gated(sizes, call, _all_means(sizes, call), attended_to(call, close), attend)
        return Output(out.to(call.q.dtype))

    return run


def _only_real(at: Tensor, real: Tensor, block: int, keys: int) -> Tensor:
    """Bool [B, S, R, J]: keys of the blocks that count, the rest replaced by the first, which counts unless the
    row stands before every key and sees nothing."""
    return chosen_blocks(torch.where(real, at, at[..., :1]), block, keys)


def _gathered(sizes: _Sizes, variant: Variant, support: Support, rows: int = ROWS) -> Implementation:
    """`rows` queries at a time against gathered copies of their chosen blocks; the window in a band."""
    checked("rows", rows)

    def configure(rows: int = ROWS) -> Implementation:
        return _gathered(sizes, variant, support, rows)

    def attend(part: Call, at: Tensor, real: Tensor) -> Tensor:
        columns, exist = block_columns(at, sizes.block, part.k.shape[2])
        seen = exist & real.repeat_interleave(sizes.block, -1) & may_see(part.mask, columns)
        return attended(part, columns, seen).out

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.to(call.q.device)
        pieces = [(lo, hi, mask.rows(lo, hi)) for lo, hi in spans(call.q.shape[2], rows)]
        window = banded(variant, sizes.window).prepare(call, False)

        def run(call: Call) -> Output:
            windowed = window(call.map(wide)).out
            means = _all_means(sizes, call)
            outs = [
                _gated(sizes, call.rows(lo, hi, part), means, windowed[:, :, lo:hi], attend) for lo, hi, part in pieces
            ]
            return Output(torch.cat(outs, 2).to(call.q.dtype))

        return run

    return Implementation("gathered", variant, prepare, support, configure=configure, growth=CHOSEN)


def _why_not(call: Call) -> str | None:
    if not call.mask.causal:
        return "nsa is causal only: a query chooses among the blocks before its own; add `causal`"
    return "nsa counts blocks from key 0 on: it takes no keys that start elsewhere" if call.mask.k_start else None


def implementations(block: int = 64, chosen: int = 4, window: int = 256, share: int = 1) -> list[Implementation]:
    """Both forms. Raises ValueError for a size below 1."""
    sizes = _Sizes(
        checked("block", block), checked("chosen", chosen), checked("window", window), checked("share", share)
    )
    gate = Parameter("B H I", "token", draw=_draw_gate, squash=torch.sigmoid)
    variant = Variant(
        "nsa",
        weights=partial(_weights, sizes),
        parameters=dict.fromkeys(BRANCHES, gate),
        couples=frozenset({"keys"} if share == 1 else {"keys", "heads"}),
        masks=frozenset({"causal", "key_lengths", "empty_rows"}),
        continuous=False,
        row_stochastic=False,
        why_not=_why_not,
        paper="Yuan et al. 2025, arXiv 2502.11089",
        formula="A = g_c softmax(scale · q k̃ᵀ) P + g_s softmax over chosen blocks + g_w softmax over the window",
        cost="time O(I·(J/block + chosen·block + window)·(D+E)); memory O(rows·chosen·block·(D+E) + I·window)",
    )
    support = Support(masks=variant.masks)
    return [
        Implementation("dense", variant, partial(_dense, sizes), support),
        _gathered(sizes, variant, support),
    ]
