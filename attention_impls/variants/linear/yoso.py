"""YOSO: the probability that a query and a key fall into the same bucket of a random hash, in expectation.

A_ij = (1 − arccos(q̂_i·k̂_j)/π)^τ over visible keys, unit q̂, k̂: τ random hyperplanes separate none of the pair
with this probability. out = A v / max(|A v|, 1e-12), over E. Rows do not sum to 1, no scale. τ = `planes`. This is
the expectation, exact and O(I·J); the published linear-time form draws hashes and is a random estimate of it. The
arccosine has no slope where q̂ = ±k̂: gradients there are not finite (never so for heads of more than one feature
but by chance). Source: Zeng et al. 2021, "You Only Sample (Almost) Once", arXiv 2111.09714.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call, repeat_heads
from attention_impls.contract import Growth, Implementation, Output, Run, Variant
from attention_impls.tiling import checked, spans
from attention_impls.undefined import no_scale, one


def _weights(planes: int, call: Call, rows: Tensor) -> Tensor:
    q, k = (x / vector_norm(x, dim=-1, keepdim=True) for x in (call.q[:, :, rows], call.k))
    same: Tensor = (1 - (q @ k.mT).clamp(-1, 1).arccos() / math.pi) ** planes
    visible = call.mask.visible(rows)
    return same if visible is None else same.masked_fill(~visible, 0.0)


def _unit(out: Tensor, call: Call, rows: Tensor) -> Tensor:
    return normalize(out, dim=-1)


def _attend(planes: int, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """Unit q [B, H, R, D] and k [B, H, J, D] -> the mean direction of what collides [B, H, R, E]."""
    cosines = (q @ k.mT).clamp(-1, 1)
    # pi - arccos(c) = arccos(-c): no cancellation where the two are opposite
    same = (cosines.neg().arccos() / math.pi).pow(planes)
    same = same if visible is None else same.masked_fill(~visible, 0.0)
    return normalize(same @ v, dim=-1)


def _inputs(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Unit queries, unit keys and values in float32 at least, repeated for the query heads."""
    wide, heads = torch.promote_types(call.q.dtype, torch.float32), call.q.shape[1]
    k, v = repeat_heads(call.k, heads).to(wide), repeat_heads(call.v, heads).to(wide)
    return normalize(call.q.to(wide), dim=-1), normalize(k, dim=-1), v


def _naive(planes: int, call: Call, lse: bool) -> Run:
    """All pairs at once: [B, H, I, J]."""
    visible = call.mask.simplified().to(call.q.device).visible()
    return lambda call: Output(_attend(planes, *_inputs(call), visible).to(call.q.dtype))


def blocked(variant: Variant, planes: int, block: int = 64) -> Implementation:
    """Blocks of `block` queries against the keys they may see, each computed again in the backward."""
    checked("block", block)

    def configure(block: int = 64) -> Implementation:
        return blocked(variant, planes, block)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        plan = []
        for lo, hi in spans(mask.q_len, block):
            rows = mask.rows(lo, hi)
            part = rows.keys(0, max(rows.last_visible(), 1)).simplified()
            plan.append((lo, hi, part.kv_len, part.visible()))

        def run(call: Call) -> Output:
            q, k, v = _inputs(call)
            parts = [
                checkpoint(
                    _attend, planes, q[:, :, lo:hi], k[:, :, :n], v[:, :, :n], visible,
                    use_reentrant=False, preserve_rng_state=False,
                )
                for lo, hi, n, visible in plan
            ]  # fmt: skip
            return Output(torch.cat(parts, 2).to(call.q.dtype))

        return run

    return Implementation("blocked", variant, prepare, configure=configure, growth=Growth(bytes=1))


def implementations(planes: int = 8) -> list[Implementation]:
    """The two forms with τ = `planes`. Raises ValueError for fewer than one."""
    variant = Variant(
        "yoso",
        weights=partial(_weights, checked("planes", planes)),
        finish=_unit,
        row_stochastic=False,
        scale=one,
        why_not=no_scale("yoso"),
        paper="Zeng et al. 2021, arXiv 2111.09714",
        formula="A = (1 − arccos(q̂·k̂)/π)^τ; out = A v / |A v|",
        cost="time O(I·J·(D+E)); memory O(I·J) naive, O(block·J) blocked",
    )
    return [Implementation("naive", variant, partial(_naive, planes)), blocked(variant, planes)]
