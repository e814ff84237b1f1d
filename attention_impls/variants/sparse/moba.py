"""Mixture of block attention: each query attends to its own block of keys and to the blocks whose mean it likes best.

Keys are cut into blocks of `block` by absolute position from 0 on. Query i at position p scores block n before its
own, s_in = q_i·mean(k_j over the block's keys within the sequence's length); its own block, ⌊p / block⌋, counts as +∞,
blocks after it as −∞. A_i = softmax over visible keys in the `chosen` best blocks of scale · q_i·k_j: the own block is
one of them, as in the paper's sparsity (1 − block·k/n) and the published code. Of blocks with equal scores, as float32
numbers worked out in float64, the earlier is taken. The choice has no gradient. Causal only. With as many
blocks as there are it is causal `softmax`. Not continuous: a small change may exchange one block for another.

Source: Lu et al. 2025, "MoBA: Mixture of Block Attention for Long-Context LLMs", arXiv 2502.13189. Packed documents
would each begin their own blocks there: they are not offered here. Options: block, chosen.
"""

from __future__ import annotations

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
    products,
    within_length,
)
from attention_impls.contract import Implementation, Support
from attention_impls.makers import softmax_of
from attention_impls.tiling import checked


def _logits(block: int, chosen: int, call: Call, rows: Tensor) -> Tensor:
    """The definition: logits in the chosen blocks, -inf elsewhere. A block's score is its keys' mean product with q."""
    q, keys = call.q[:, :, rows], call.k.shape[2]
    of_key = torch.arange(keys) // block  # [J], the block of each key
    inside = torch.ones(1, 1, 1, keys, dtype=torch.bool)
    if call.mask.key_lengths is not None:
        inside = torch.arange(keys) < call.mask.key_lengths.view(-1, 1, 1, 1)
    own = (call.mask.q_positions(rows) // block).view(-1, 1, len(rows))
    raw = exact(q) @ exact(call.k).mT
    scores = []
    for n in range(int(of_key[-1]) + 1):
        member = (of_key == n) & inside
        mean = raw.masked_fill(~member, 0.0).sum(-1) / member.sum(-1)  # nothing inside: NaN, hidden below
        mean = torch.where(own > n, mean, float("-inf")).masked_fill(~member.any(-1), float("-inf"))
        scores.append(mean.masked_fill(own == n, float("inf")))
    kept = among_best(torch.stack(scores, -1), chosen)[..., of_key]
    return hide(q @ call.k.mT * call.scale, kept)


def _block_means(block: int, call: Call) -> Tensor:
    """[B, G, N, D] float64: the mean of each block's keys within the sequence's length; zeros where there are none."""
    keys = call.k.shape[2]
    inside = within_length(call.mask, call.k.device)
    k = exact(call.k) if inside is None else exact(call.k).masked_fill(~inside, 0.0)
    counted = torch.ones_like(k[:, :, :, :1]) if inside is None else inside.expand(*k.shape[:3], 1).double()
    fill = (0, 0, 0, -keys % block)
    sums, counts = (pad(x, fill).unflatten(2, (-1, block)).sum(3) for x in (k, counted))
    means: Tensor = sums / counts.clamp_min(1.0)
    return means


def _chosen(block: int, chosen: int, means: Tensor, part: Call) -> Tensor:
    """Blocks [B, H, R, chosen] of each row of `part`, the own one first."""
    scores = products(exact(part.q), means)
    blocks = torch.arange(means.shape[2], device=means.device)
    rows = torch.arange(part.q.shape[2], device=means.device)
    own = (part.mask.q_positions(rows) // block).view(-1, 1, len(rows), 1)
    hidden = blocks > own
    if part.mask.key_lengths is not None:
        hidden = hidden | (blocks * block >= part.mask.key_lengths.view(-1, 1, 1, 1))
    return best(scores.masked_fill(hidden, float("-inf")).masked_fill(blocks == own, float("inf")), chosen)


def _chooser(block: int, chosen: int, call: Call) -> Choose:
    means, keys = _block_means(block, call), call.k.shape[2]

    def choose(part: Call) -> tuple[Tensor, Tensor]:
        at, real = block_columns(_chosen(block, chosen, means, part), block, keys)
        return at, real & may_see(part.mask, at)

    return choose


def _kept(block: int, chosen: int, call: Call) -> Tensor:
    at = _chosen(block, chosen, _block_means(block, call), call)
    return chosen_blocks(at, block, call.k.shape[2])


def _not_causal(call: Call) -> str | None:
    if not call.mask.causal:
        return "moba is causal only: a query chooses among the blocks before its own; add `causal`"
    return "moba counts blocks from key 0 on: it takes no keys that start elsewhere" if call.mask.k_start else None


def implementations(block: int = 64, chosen: int = 4) -> list[Implementation]:
    """Both forms for `chosen` blocks of `block` keys a query, the own one included. Raises ValueError below 1."""
    checked("block", block)
    checked("chosen", chosen)
    variant = softmax_of(
        "moba",
        partial(_logits, block, chosen),
        couples=frozenset({"keys"}),
        masks=frozenset({"causal", "key_lengths", "empty_rows"}),
        continuous=False,
        why_not=_not_causal,
        paper="Lu et al. 2025, arXiv 2502.13189",
        formula="A = softmax over the own block and the best others by q·mean(K block) of scale · q·k",
        cost="time O(I·(J/block·D + chosen·block·(D+E))), memory O(rows·(J/block + chosen·block·(D+E))); dense O(I·J)",
    )
    support = Support(masks=variant.masks, lse="differentiable")
    keep, chooser = partial(_kept, block, chosen), partial(_chooser, block, chosen)
    return [dense(variant, keep, support), gathered(variant, chooser, support)]
