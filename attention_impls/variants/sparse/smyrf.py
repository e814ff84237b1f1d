"""SMYRF: queries and keys are hashed by one line through an asymmetric map, sorted and cut into clusters of equal size.

With Q and K the largest lengths of a query and of a key within its sequence's length, F(q) = [q; 0; √(Q² + K² − |q|²)]
and G(k) = [k; √(Q² + K² − |k|²); 0] are all equally long and F(q)·G(k) = q·k, so that the nearest fit best. In each of
`rounds` rounds tokens are sorted by a·F(q) and by a·G(k), a [D + 2] random: of equal hashes, as float32 numbers worked
out in float64, the earlier token first, keys past their sequence's length last. Cluster c of C holds the c-th ⌈I / C⌉
queries and the c-th ⌈I / C⌉ keys. A_i = softmax over the visible keys that meet query i of scale · q_i·k_j, a key met
in m rounds counting m times: rounds are joined by their sums. A query that meets no key that it sees gives zeros.

Source: Daras et al. 2020, "SMYRF: Efficient Attention using Asymmetric Clustering", arXiv 2010.05315; there hashes are
rounded to buckets before they are sorted, so that tokens of one bucket keep their order. With one cluster it is
`softmax`. Stochastic (a), not continuous. Who meets whom depends on every token, later ones too: under a causal mask
no later value is read, yet a later token can move a cluster's border. Self-attention. Options: rounds, clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, merge_by_lse, repeat_heads, softmax_rows, wide
from attention_impls.choosing import exact, products, shown, within_length
from attention_impls.contract import Implementation, Output, Parameter, Run, Support, Workload
from attention_impls.makers import softmax_of
from attention_impls.mask import Mask
from attention_impls.tiling import checked, spans


def _logits(clusters: int, call: Call, rows: Tensor) -> Tensor:
    """The definition: logits, raised by log m where a pair meets m times."""
    tokens = call.q.shape[2]
    q, k = exact(call.q), exact(call.k)
    inside = torch.ones(1, 1, tokens, dtype=torch.bool)
    if call.mask.key_lengths is not None:
        inside = torch.arange(tokens) < call.mask.key_lengths.view(-1, 1, 1)
    of_q, of_k = q.square().sum(-1), k.square().sum(-1).masked_fill(~inside, 0.0)
    both = of_q.amax(-1, keepdim=True) + of_k.amax(-1, keepdim=True)
    size, times = -(-tokens // clusters), torch.zeros(1)
    for line in exact(call.parameters["lines"]):
        at_q = q @ line[:-2] + line[-1] * (both - of_q).sqrt()
        at_k = k @ line[:-2] + line[-2] * (both - of_k).sqrt()
        cluster_q, cluster_k = (
            at.float().sort(dim=-1, stable=True).indices.argsort(-1) // size
            for at in (at_q, at_k.masked_fill(~inside, float("inf")))
        )
        times = times + (cluster_q[:, :, rows].unsqueeze(-1) == cluster_k.unsqueeze(-2))
    return call.q[:, :, rows] @ call.k.mT * call.scale + times.to(call.q.dtype).log()


def _orders(call: Call) -> tuple[Tensor, Tensor]:
    """Queries and keys [N, B, H, I] in the order of each round's hashes."""
    q, k = exact(call.q), repeat_heads(exact(call.k), call.q.shape[1])
    inside = within_length(call.mask, q.device)
    k = k if inside is None else k.masked_fill(~inside, 0.0)
    lengths = [x.square().sum(-1, keepdim=True) for x in (q, k)]
    both = sum((x.amax(2, keepdim=True) for x in lengths), start=torch.zeros_like(lengths[0][:, :, :1]))
    nothing = torch.zeros_like(lengths[0])
    mapped_q = torch.cat([q, nothing, (both - lengths[0]).sqrt()], -1)
    mapped_k = torch.cat([k, (both - lengths[1]).sqrt(), nothing], -1)
    at_q, at_k = (torch.einsum("nz,bhiz->nbhi", exact(call.parameters["lines"]), x) for x in (mapped_q, mapped_k))
    at_k = at_k if inside is None else at_k.masked_fill(~inside.squeeze(-1), float("inf"))
    return at_q.float().argsort(dim=-1, stable=True), at_k.float().argsort(dim=-1, stable=True)


def _places(order: Tensor) -> Tensor:
    """Where each token stands in `order`."""
    ranks = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, ranks)


def _dense(clusters: int, call: Call, lse: bool) -> Run:
    """All pairs materialised, hidden where they never meet."""
    mask, size = call.mask.to(call.q.device), -(-call.q.shape[2] // clusters)
    visible = shown(mask, call.q.device)

    def run(call: Call) -> Output:
        mine, theirs = (_places(order) // size for order in _orders(replace(call, mask=mask)))
        met = (mine.unsqueeze(-1) == theirs.unsqueeze(-2)).sum(0)  # [B, H, I, I], how often
        logits = products(wide(call.q), wide(call.k)) * call.scale
        logits = hide(logits + met.to(logits.dtype).log(), visible)
        out = softmax_rows(logits) @ wide(repeat_heads(call.v, call.q.shape[1]))
        return Output(out.to(call.q.dtype), lse_rows(logits) if lse else None)

    return run


def _clustered(clusters: int, call: Call, lse: bool) -> Run:
    """Each round's clusters side by side, its result put back in order, rounds merged by their log-sum-exp."""
    mask, tokens = call.mask.to(call.q.device), call.q.shape[2]
    bounds = spans(tokens, -(-tokens // clusters))

    def run(call: Call) -> Output:
        heads = call.q.shape[1]
        call = replace(call, q=wide(call.q), k=wide(repeat_heads(call.k, heads)), v=wide(repeat_heads(call.v, heads)))
        parts = [_round(call, mask, bounds, *orders) for orders in zip(*_orders(replace(call, mask=mask)), strict=True)]
        out, total = merge_by_lse([part[0] for part in parts], [part[1] for part in parts])
        return Output(out, total if lse else None)

    def back(call: Call) -> Output:
        found = run(call)
        return Output(found.out.to(call.q.dtype), found.lse)

    return back


def _round(
    call: Call, mask: Mask, bounds: list[tuple[int, int]], order_q: Tensor, order_k: Tensor
) -> tuple[Tensor, Tensor]:
    """One round: out [B, H, I, E] and log-sum-exp [B, H, I]."""
    outs, totals = [], []
    for lo, hi in bounds:
        r, c = order_q[..., lo:hi], order_k[..., lo:hi]
        logits = hide(
            _taken(call.q, r) @ _taken(call.k, c).mT * call.scale, _allowed(mask, r.unsqueeze(-1), c.unsqueeze(-2))
        )
        outs.append(softmax_rows(logits) @ _taken(call.v, c))
        totals.append(lse_rows(logits))
    places = _places(order_q)
    return _taken(torch.cat(outs, 2), places), torch.cat(totals, 2).gather(2, places)


def _taken(x: Tensor, at: Tensor) -> Tensor:
    """x [B, H, T, D] at [B, H, W] -> [B, H, W, D]."""
    return x.gather(2, at.unsqueeze(-1).expand(*at.shape, x.shape[-1]))


def _allowed(mask: Mask, r: Tensor, c: Tensor) -> Tensor:
    b = torch.arange(r.shape[0], device=r.device).clamp_max(mask.shape[0] - 1).view(-1, 1, 1, 1)
    h = torch.arange(r.shape[1], device=r.device).clamp_max(mask.shape[1] - 1).view(1, -1, 1, 1)
    return mask.allows(b, h, r, c)


def _line_size(workload: Workload) -> int:
    return workload.head_dim + 2


def implementations(rounds: int = 2, clusters: int = 8) -> list[Implementation]:
    """Both forms. Raises ValueError for counts below 1."""
    checked("rounds", rounds)
    checked("clusters", clusters)
    lines = Parameter("N Z", "random", sizes={"N": rounds, "Z": _line_size}, dtype="float32")
    variant = softmax_of(
        "smyrf",
        partial(_logits, clusters),
        parameters={"lines": lines},
        couples=frozenset({"queries", "keys"}),
        continuous=False,
        self_only=True,
        paper="Daras et al. 2020, arXiv 2010.05315",
        formula="A = softmax over the keys of equal rank cluster in sorted hashes of scale · q·k, joined over rounds",
        cost="time O(rounds·I·(I/clusters·(D+E) + log I)); memory O(rounds·I·I/clusters) with a backward; dense O(I²)",
        approximates="softmax",
    )
    support = Support(cross=False, lse="differentiable")
    forms: dict[str, Callable[[int, Call, bool], Run]] = {"dense": _dense, "clustered": _clustered}
    return [Implementation(name, variant, partial(form, clusters), support) for name, form in forms.items()]
