"""Routing attention: queries and keys are dealt to clusters around fixed centroids and attend within them.

Cluster c of C takes the ⌈I / C⌉ queries with the largest q̂_i·μ_c and the ⌈J / C⌉ keys with the largest k̂_j·μ_c,
x̂ = x / |x|, keys past their sequence's length last: clusters are of equal size, and a token may be in several or in
none. A_i = the mean, over the clusters that query i is in, of softmax over the visible keys of that cluster of
scale · q_i·k_j; zeros where it is in none, and from a cluster none of whose keys it sees. Of equal scores, as float32
numbers worked out in float64, the earlier token is taken; the choice has no gradient. Who is in a cluster depends on
all queries and keys, later ones too: under a causal mask no later value is read, yet a later token can move an earlier
one out. With one cluster it is `softmax`. Not continuous: a small change may exchange two tokens.

Source: Roy et al. 2020, "Efficient Content-Based Sparse Attention with Routing Transformers", arXiv 2003.05997. There
μ [H, C, D] follows its members by a moving average while training; here it is given. Rows in several clusters are
averaged, as routing-transformer does, and layer norm of q and k is a layer's business.
Option: clusters (√n makes it fastest).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attention_impls.call import Call, hide, repeat_heads, softmax_rows, wide
from attention_impls.choosing import among_best, best, exact, shown, within_length
from attention_impls.contract import Implementation, Output, Parameter, Run, Variant
from attention_impls.mask import Mask
from attention_impls.tiling import checked


def _scores(x: Tensor, call: Call) -> Tensor:
    """x [B, H, T, D] -> [B, H, C, T]: how well each token fits each centroid."""
    return exact(call.parameters["centroids"]) @ normalize(exact(x), dim=-1).mT


def _share(tokens: int, clusters: int) -> int:
    return -(-tokens // clusters)


def _weights(clusters: int, call: Call, rows: Tensor) -> Tensor:
    """The definition, one cluster after another."""
    tokens, keys = call.q.shape[2], call.k.shape[2]
    fit = _scores(call.k, call)
    if call.mask.key_lengths is not None:
        fit = hide(fit, torch.arange(keys) < call.mask.key_lengths.view(-1, 1, 1, 1))
    takes = among_best(fit, _share(keys, clusters))  # [B, H, C, J]
    holds = among_best(_scores(call.q, call), _share(tokens, clusters))[..., rows]  # [B, H, C, R]
    logits = hide(call.q[:, :, rows] @ call.k.mT * call.scale, call.mask.visible(rows))
    total = torch.zeros_like(logits)
    for c in range(clusters):
        inside = holds[:, :, c, :, None] & takes[:, :, c, None, :]
        total = total + softmax_rows(hide(logits, inside))
    return total / holds.sum(2).clamp_min(1).unsqueeze(-1)


def _members(clusters: int, call: Call) -> tuple[Tensor, Tensor]:
    """Rows [B, H, C, ⌈I/C⌉] and key columns [B, H, C, ⌈J/C⌉] of every cluster."""
    heads, inside = call.q.shape[1], within_length(call.mask, call.k.device)
    fit = _scores(repeat_heads(call.k, heads), call)
    fit = fit if inside is None else hide(fit, inside.mT)
    rows = best(_scores(call.q, call), _share(call.q.shape[2], clusters))
    return rows, best(fit, _share(call.k.shape[2], clusters))


def _dense(clusters: int, call: Call, lse: bool) -> Run:
    """All pairs materialised for each cluster in turn."""
    mask = call.mask.to(call.q.device)
    visible = shown(mask, call.q.device)

    def marks(at: Tensor, tokens: int) -> Tensor:
        return torch.zeros((*at.shape[:3], tokens), dtype=torch.bool, device=at.device).scatter_(-1, at, True)

    def run(call: Call) -> Output:
        heads = call.q.shape[1]
        at, columns = _members(clusters, replace(call, mask=mask))
        rows, keys = marks(at, call.q.shape[2]), marks(columns, call.k.shape[2])
        logits = hide(wide(call.q) @ wide(repeat_heads(call.k, heads)).mT * call.scale, visible)
        weights = [softmax_rows(hide(logits, keys[:, :, c, None])) * rows[:, :, c, :, None] for c in range(clusters)]
        mean = torch.stack(weights).sum(0) / rows.sum(2).clamp_min(1).unsqueeze(-1)
        return Output((mean @ wide(repeat_heads(call.v, heads))).to(call.q.dtype))

    return run


def _clustered(clusters: int, call: Call, lse: bool) -> Run:
    """Queries and keys of each cluster gathered side by side: C small squares instead of one large one."""
    mask = call.mask.to(call.q.device)

    def run(call: Call) -> Output:
        heads = call.q.shape[1]
        rows, columns = _members(clusters, replace(call, mask=mask))
        q = _taken(wide(call.q), rows)
        k, v = (_taken(wide(repeat_heads(x, heads)), columns) for x in (call.k, call.v))
        logits = hide(q @ k.mT * call.scale, _allowed(mask, rows.unsqueeze(-1), columns.unsqueeze(-2)))
        outs = (softmax_rows(logits) @ v).flatten(2, 3)  # [B, H, C·⌈I/C⌉, E]
        at = rows.flatten(2).unsqueeze(-1)
        total = outs.new_zeros((*call.q.shape[:3], outs.shape[-1])).scatter_add(2, at.expand_as(outs), outs)
        times = outs.new_zeros((*call.q.shape[:3], 1)).scatter_add(2, at, torch.ones_like(outs[..., :1]))
        return Output((total / times.clamp_min(1.0)).to(call.q.dtype))

    return run


def _taken(x: Tensor, at: Tensor) -> Tensor:
    """x [B, H, T, D] at [B, H, C, W] -> [B, H, C, W, D]."""
    flat = at.flatten(2).unsqueeze(-1)
    return x.gather(2, flat.expand(*flat.shape[:3], x.shape[-1])).view(*at.shape, x.shape[-1])


def _allowed(mask: Mask, r: Tensor, c: Tensor) -> Tensor:
    b = torch.arange(r.shape[0], device=r.device).clamp_max(mask.shape[0] - 1).view(-1, 1, 1, 1, 1)
    h = torch.arange(r.shape[1], device=r.device).clamp_max(mask.shape[1] - 1).view(1, -1, 1, 1, 1)
    return mask.allows(b, h, r, c)


def _unit(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return normalize(torch.randn(shape, generator=generator), dim=-1)


def implementations(clusters: int = 16) -> list[Implementation]:
    """Both forms. Raises ValueError for fewer clusters than one."""
    checked("clusters", clusters)
    variant = Variant(
        "routing",
        weights=partial(_weights, clusters),
        parameters={"centroids": Parameter("H C D", "constant", draw=_unit, sizes={"C": clusters}, dtype="float32")},
        couples=frozenset({"queries", "keys"}),
        continuous=False,
        row_stochastic=False,
        paper="Roy et al. 2020, arXiv 2003.05997",
        formula="A = mean over a query's clusters of softmax of scale · q·k over the cluster's keys",
        cost="time O((I+J)·C·D + I·J/C·(D+E)), N^3/2 where C = √N; memory O((I+J)·C + I·J/C); dense O(C·I·J)",
        approximates="softmax",
    )
    return [
        Implementation("dense", variant, partial(_dense, clusters)),
        Implementation("clustered", variant, partial(_clustered, clusters)),
    ]
