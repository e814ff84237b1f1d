"""Attention from any score of a query and a key by tiles of queries × keys, with a backward of its own.

Online softmax, or a plain sum where the variant joins by "sum"; memory O(I + J) beside one tile. Exact. The
backward scores every tile again: with p = exp(score − LSE), dP = dO vᵀ and D = rowsum(dO ⊙ O), a softmax's score has
the gradient p ⊙ (dP − D), a sum's dP; autograd carries it through the score of that tile alone. A sink is one more
logit [H] in every row's denominator, with no value: the running sum begins with it. In float32 at least, but for a
score under autocast; so is what the backward keeps of the output: a rounded D is felt where gradients cancel.

Sources: Milakov & Gimelshein 2018, arXiv 1805.02867 (online softmax); Dao 2023, arXiv 2307.08691 (the backward).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_impls.call import Call, hide, wide
from attention_impls.contract import Growth, Implementation, Output, Run, Support, Variant
from attention_impls.scored import Score, as_called, lse_of, shown
from attention_impls.tiling import Band, Tile, bands, checked


def tiled(variant: Variant, score: Score, *, sink: str = "", block: int = 128) -> Implementation:
    """Tiles of `block` queries × `block` keys; `sink` names the parameter [H] that holds the sink's logit.

    Raises ValueError for a block below 1, and for a learned parameter that a tile would cut (axes G, I or J).
    """
    checked("block", block)
    cut = [name for name, p in variant.parameters.items() if p.learned and {"G", "I", "J"} & set(p.axes.split())]
    if cut:
        raise ValueError(f"tiles of {variant.name} would cut its learned parameter {cut[0]!r}; it takes whole ones")

    def configure(block: int = 128) -> Implementation:
        return tiled(variant, score, sink=sink, block=block)

    def prepare(call: Call, lse: bool) -> Run:
        plan = bands(call.mask.simplified().to(call.q.device), block, block)
        rule = _Rule(score, variant.join == "sum", sink, tuple(sorted(call.parameters)), plan)

        def run(call: Call) -> Output:
            given = (call.q, call.k, call.v, *(call.parameters[name] for name in rule.names))
            here = replace(rule, score=as_called(score, call.q.device.type))
            with torch.autocast(call.q.device.type, enabled=False):
                out, total = _Tiled.apply(here, _without_tensors(call), *given)  # type: ignore[no-untyped-call]
            return Output(out, total if lse else None)

        return run

    return Implementation(
        "tiled", variant, prepare, Support(lse=lse_of(variant)), configure=configure, growth=Growth(bytes=1)
    )


@dataclass(frozen=True, eq=False)
class _Rule:
    """What is known before any value; `names` are those of the parameters, in the order in which they are passed."""

    score: Score
    summed: bool
    sink: str
    names: tuple[str, ...]
    plan: tuple[Band, ...]


def _without_tensors(call: Call) -> Call:
    """Mask, scale and axes alone: what a saved step may keep without holding its inputs."""
    nothing = call.q.new_empty(0).detach()
    return replace(call, q=nothing, k=nothing, v=nothing, parameters={})


def _filled(rule: _Rule, frame: Call, tensors: tuple[Tensor, ...]) -> Call:
    q, k, v, *own = tensors
    return replace(frame, q=q, k=k, v=v, parameters=dict(zip(rule.names, own, strict=True)))


def tile_of(call: Call, band: Band, tile: Tile) -> Call:
    """The call of one tile, heads expanded, in wide numbers; its mask is left whole, since nobody asks it."""
    cut = call.rows(band.lo, band.hi, call.mask).keys(tile.lo, tile.hi, call.mask)
    return cut.expanded().map(wide)


class _Tiled(torch.autograd.Function):
    """(rule, frame, q [B, H, I, D], k [B, G, J, D], v [B, G, J, E], *parameters) -> out [B, H, I, E], lse [B, H, I]."""

    @staticmethod
    def forward(ctx: Any, rule: _Rule, frame: Call, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        call = _filled(rule, frame, tensors)
        q, e = call.q, call.v.shape[3]
        out, lse = wide(q.new_empty((*q.shape[:3], e))), wide(q.new_empty(q.shape[:3]))
        attend = _sum_of if rule.summed else _softmax_of
        for band in rule.plan:
            out[:, :, band.lo : band.hi], lse[:, :, band.lo : band.hi] = attend(rule, call, band)
        ctx.save_for_backward(out, lse, *tensors)
        ctx.rule, ctx.frame = rule, frame
        ctx.set_materialize_grads(False)
        return out.to(q.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        out, lse, *tensors = ctx.saved_tensors
        rule, call = ctx.rule, _filled(ctx.rule, ctx.frame, tuple(tensors))
        d_out = torch.zeros_like(out) if d_out is None else d_out
        inputs = dict(zip(("q", "k", "v", *rule.names), tensors, strict=True))
        wanted = dict(zip(inputs, ctx.needs_input_grad[2:], strict=True))
        sums = {name: torch.zeros_like(wide(t)) for name, t in inputs.items() if wanted[name]}
        for band in rule.plan:
            rows = slice(band.lo, band.hi)
            upstream = wide(d_out[:, :, rows])
            # What every score of a row takes off dP: D, less the gradient that reaches the LSE directly.
            shift = (upstream * out[:, :, rows]).sum(-1, keepdim=True)
            if d_lse is not None:
                shift = shift - d_lse[:, :, rows].unsqueeze(-1)
            _backward(rule, call, band, upstream, lse[:, :, rows].unsqueeze(-1), shift, sums)
        return (None, None, *(sums[n].to(t.dtype) if n in sums else None for n, t in inputs.items()))


def _sum_of(rule: _Rule, call: Call, band: Band) -> tuple[Tensor, Tensor]:
    """One band's Σ score · v [B, H, R, E]; it has no LSE."""
    q = wide(call.q[:, :, band.lo : band.hi])
    acc = q.new_zeros((*q.shape[:3], call.v.shape[3]))
    for tile in band.tiles:
        part = tile_of(call, band, tile)
        acc += shown(rule.score(part), tile.visible) @ part.v
    return acc, q.new_zeros(q.shape[:3])


def _softmax_of(rule: _Rule, call: Call, band: Band) -> tuple[Tensor, Tensor]:
    """One band's out [B, H, R, E] and lse [B, H, R]; rows without a key give 0 and -inf, or the sink's logit."""
    q = wide(call.q[:, :, band.lo : band.hi])
    acc = q.new_zeros((*q.shape[:3], call.v.shape[3]))
    top, total = _start(rule, call, q)
    for tile in band.tiles:
        part = tile_of(call, band, tile)
        s = hide(rule.score(part), tile.visible)
        higher = torch.maximum(top, s.amax(-1, keepdim=True))
        anchor = higher.masked_fill(torch.isneginf(higher), 0.0)  # keeps exp(-inf - -inf) from being NaN
        p, shrink = (s - anchor).exp_(), (top - anchor).exp_()
        total = total * shrink + p.sum(-1, keepdim=True)
        acc = acc * shrink + p @ part.v
        top = higher
    lse = (top + total.log()).squeeze(-1)
    return acc / total.masked_fill(total == 0, 1.0), lse


def _start(rule: _Rule, call: Call, q: Tensor) -> tuple[Tensor, Tensor]:
    """The running maximum and sum [B, H, R, 1] before any key: nothing, or the sink alone."""
    top = q.new_full((*q.shape[:3], 1), float("-inf"))
    if not rule.sink:
        return top, torch.zeros_like(top)
    sink = wide(call.parameters[rule.sink]).to(q.dtype).view(1, -1, 1, 1).expand_as(top)
    return sink, torch.isfinite(sink).to(q.dtype)


def _backward(
    rule: _Rule, call: Call, band: Band, upstream: Tensor, lse: Tensor, shift: Tensor, sums: dict[str, Tensor]
) -> None:
    """Adds one band's share to `sums`, the gradients by name of those inputs that want one."""
    lse = lse.masked_fill(torch.isneginf(lse), 0.0)
    if rule.sink in sums:
        share = (wide(call.parameters[rule.sink]).to(lse.dtype).view(1, -1, 1, 1) - lse).exp()
        sums[rule.sink] -= (share * shift).sum((0, 2, 3))
    for tile in band.tiles:
        part = tile_of(call, band, tile)
        scores, leaves = _scored_again(rule, part, sums)
        s, d_scores = scores.detach(), upstream @ part.v.mT
        p = shown(s, tile.visible) if rule.summed else (hide(s, tile.visible) - lse).exp()
        if "v" in sums:
            sums["v"][:, :, tile.lo : tile.hi] += _by_group(p.mT @ upstream, call)
        if not leaves:
            continue
        d_scores = shown(d_scores, tile.visible) if rule.summed else (d_scores - shift) * p
        found = torch.autograd.grad(scores, list(leaves.values()), d_scores.to(scores.dtype), allow_unused=True)
        _add(dict(zip(leaves, found, strict=True)), call, band, tile, sums)


def _scored_again(rule: _Rule, part: Call, sums: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The tile's scores with a graph that begins at leaves of its own, for those inputs that want a gradient."""
    inputs = {"q": part.q, "k": part.k, **part.parameters}
    leaves = {n: t.detach().requires_grad_() for n, t in inputs.items() if n in sums and n != rule.sink}
    own = {name: leaves.get(name, p) for name, p in part.parameters.items()}
    with torch.enable_grad():
        tracked = replace(part, q=leaves.get("q", part.q), k=leaves.get("k", part.k), parameters=own)
        return rule.score(tracked), leaves


def _add(found: dict[str, Tensor | None], call: Call, band: Band, tile: Tile, sums: dict[str, Tensor]) -> None:
    for name, gradient in found.items():
        if gradient is None:
            continue
        if name == "q":
            sums[name][:, :, band.lo : band.hi] += gradient
        elif name == "k":
            sums[name][:, :, tile.lo : tile.hi] += _by_group(gradient, call)
        else:
            sums[name] += gradient


def _by_group(x: Tensor, call: Call) -> Tensor:
    """[B, H, ...] summed over the query heads that share a key/value head."""
    summed: Tensor = x.unflatten(1, (call.k.shape[1], -1)).sum(2)
    return summed
