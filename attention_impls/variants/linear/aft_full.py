"""Attention free transformer (AFT-full): a learned bias for every pair of positions, keys weighed feature by feature.

out_i = σ(q_i) ⊙ Σ_visible exp(k_j + w_ij) ⊙ v_j / Σ_visible exp(k_j + w_ij), elementwise: each feature has a
softmax over keys of its own, so there is no single A [I, J], and `output` is defined instead. w [I, J] is learned,
shared by features and heads and bound to the lengths. Value size must equal head size; there is no scale. With w =
0 it is `aft_simple`. A query that sees no key gives zeros.

Source: Zhai et al. 2021, "An Attention Free Transformer", arXiv 2105.14103. `blocked` takes every softmax on its
own; `factored` is the paper's two matrix products with exp(w), where all queries see the same keys: each feature's
largest key is then in every row, and nothing underflows unless a row of w spreads over 80.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call, hide, repeat_heads, softmax_rows
from attention_impls.contract import Growth, Implementation, Output, Parameter, Run, Support, Variant
from attention_impls.linearised import normalised
from attention_impls.low_rank import SAME_KEYS
from attention_impls.mask import Mask
from attention_impls.tiling import checked, spans
from attention_impls.undefined import either, no_scale, one, one_size


def _output(call: Call, rows: Tensor) -> Tensor:
    """A softmax over keys for each query and feature: [B, H, R, D, J]."""
    logits = call.k.mT[:, :, None] + call.parameters["bias"][rows][:, None]
    visible = call.mask.visible(rows)
    weights = softmax_rows(hide(logits, None if visible is None else visible.unsqueeze(-2)))
    return call.q[:, :, rows].sigmoid() * (weights * call.v.mT[:, :, None]).sum(-1)


AFT_FULL = Variant(
    "aft_full",
    output=_output,
    parameters={"bias": Parameter("I J", "weight")},
    row_stochastic=False,
    scale=one,
    why_not=either(no_scale("aft_full"), one_size("aft_full")),
    paper="Zhai et al. 2021, arXiv 2105.14103",
    formula="out = σ(q) ⊙ Σ exp(k + w) ⊙ v / Σ exp(k + w)",
    cost="time O(I·J·D); memory O(I·J + (I+J)·D) factored, O(block·J·D) blocked",
)


@dataclass(frozen=True, eq=False)
class _Block:
    """Query rows lo..hi, how many keys any of them may see, and the boolean form of those."""

    lo: int
    hi: int
    keys: int
    visible: Tensor | None


def blocked(variant: Variant, block: int = 16) -> Implementation:
    """Blocks of `block` queries, each against the keys it may see, computed again in the backward. A call without
    the parameter "bias" has none."""
    checked("block", block)

    def configure(block: int = 16) -> Implementation:
        return blocked(variant, block)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        plan = [_block(mask, lo, hi) for lo, hi in spans(mask.q_len, block)]
        return lambda call: Output(_in_blocks(call, plan))

    return Implementation("blocked", variant, prepare, configure=configure, growth=Growth(bytes=1))


def _block(mask: Mask, lo: int, hi: int) -> _Block:
    rows = mask.rows(lo, hi)
    part = rows.keys(0, max(rows.last_visible(), 1)).simplified()
    return _Block(lo, hi, part.kv_len, part.visible())


def _in_blocks(call: Call, plan: list[_Block]) -> Tensor:
    wide, heads = call.map(lambda t: t.to(torch.promote_types(t.dtype, torch.float32))), call.q.shape[1]
    k, v = repeat_heads(wide.k, heads).mT, repeat_heads(wide.v, heads).mT
    bias = wide.parameters.get("bias")
    means = [
        checkpoint(_means, k, v, bias, block, use_reentrant=False, preserve_rng_state=False) for block in plan
    ]  # nothing random inside
    return (torch.cat(means, 2) * wide.q.sigmoid()).to(call.q.dtype)


def _means(k: Tensor, v: Tensor, bias: Tensor | None, block: _Block) -> Tensor:
    """k, v [B, H, D, J] -> [B, H, C, D]: each feature's mean of values under its softmax, a query at a time."""
    logits = k[:, :, None, :, : block.keys]
    if bias is not None:
        logits = logits + bias[block.lo : block.hi, None, : block.keys]
    if block.visible is not None:
        logits = hide(logits, block.visible.unsqueeze(-2))
    means = (softmax_rows(logits) * v[:, :, None, :, : block.keys]).sum(-1)
    return means.expand(-1, -1, block.hi - block.lo, -1)


def _factored(call: Call, lse: bool) -> Run:
    """exp(w) [I, J] times exp(k) ⊙ v and times exp(k) [J, 2D]; what the exponents exceed is taken off both first."""
    mask = call.mask.simplified().to(call.q.device)
    visible = mask.visible(torch.zeros(1, dtype=torch.long))
    hidden = None if visible is None else ~visible  # [B, 1, 1, J]

    def run(call: Call) -> Output:
        wide = call.map(lambda t: t.to(torch.promote_types(t.dtype, torch.float32)))
        bias, k = wide.parameters["bias"], wide.k
        if hidden is not None:
            bias, k = bias.masked_fill(hidden, float("-inf")), k.masked_fill(hidden.mT, float("-inf"))
        powers = _powers(k, 2)  # [B, G, J, D]
        both = _powers(bias, -1) @ torch.cat([powers * wide.v, powers], -1)  # [B, G, I, 2D]
        means = repeat_heads(normalised(*both.chunk(2, -1)), call.q.shape[1])
        return Output((means * wide.q.sigmoid()).to(call.q.dtype))

    return run


def _powers(x: Tensor, dim: int) -> Tensor:
    """exp(x) over exp of its largest along `dim`; zeros where that is −inf."""
    top = x.detach().amax(dim, keepdim=True)
    return (x - top.masked_fill(top.isneginf(), 0.0)).exp()


_FACTORED = partial(Implementation, "factored", AFT_FULL, _factored)

IMPLEMENTATIONS = [blocked(AFT_FULL), _FACTORED(Support(masks=SAME_KEYS))]
