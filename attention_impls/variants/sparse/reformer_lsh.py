"""Reformer: each token attends, within chunks, to tokens whose queries hash alike.

Queries serve as keys, k̂ = q / |q| (shared QK): the call's k is not read. In each of `rounds` rounds a token's
bucket is argmax [q̂R; −q̂R] (ties to the first), R [D, buckets/2] random, with as many buckets as chunks (made even).
Tokens are sorted by bucket, within one by position (stable), those past their sequence's length last, and cut
into chunks of `chunk`. Token i may see token j if in some round j lies in i's chunk or the one before it, the
last chunk standing before the first; and if the mask allows it. Then A = softmax over all j that i may see of
scale · q_i·k̂_j, where i = j counts −10^5: a token sees itself only when it sees nothing else.

Source: Kitaev, Kaiser, Levskaya 2020, "Reformer: The Efficient Transformer", arXiv 2001.04451: its union over
rounds (eq. 4–6: a key found in several rounds counts once; libraries that count it every time differ), attending
to whole chunks, not only to the own bucket. Approximates `softmax` of shared queries and keys, which it
is (but for the own token) with one round when there are at most two chunks. Who sees whom depends on every
token's hash, later ones too: under a causal mask no later value is read, yet a later token can move a chunk's
border. Stochastic (R), not continuous. Hashes are made in float64 in every dtype, so that none flips by rounding.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from attention_impls.call import Call, hide, repeat_heads, softmax_rows
from attention_impls.contract import Implementation, Output, Parameter, Run, Support, Variant, Workload
from attention_impls.mask import Mask

SELF = -1e5  # the logit of the own token: below any other, above none


def _half_buckets(chunk: int, workload: Workload) -> int:
    """Half the number of buckets: as many buckets as chunks, made even."""
    return -(-workload.kv_len // (2 * chunk))


def sorted_order(call: Call) -> Tensor:
    """order [N, B, H, J]: token indices by (bucket, position) in each of N rounds, padding last."""
    rotated = torch.einsum("bhid,ndz->nbhiz", call.q.detach().double(), call.parameters["rotations"].double())
    buckets = torch.cat([rotated, -rotated], -1).argmax(-1)
    if call.mask.key_lengths is not None:
        at = call.mask.k_start + torch.arange(call.mask.kv_len, device=buckets.device)
        past = at >= call.mask.key_lengths.to(buckets.device)[:, None, None]
        buckets = buckets.masked_fill(past, 2 * rotated.shape[-1])
    return buckets.argsort(dim=-1, stable=True)


def chunks_of(order: Tensor, chunk: int) -> Tensor:
    """[N, B, H, J]: the chunk that each token lies in, from the order of its round."""
    places = torch.empty_like(order)
    ranks = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return places.scatter_(-1, order, ranks) // chunk


def _beside(query_chunk: Tensor, key_chunk: Tensor, count: int) -> Tensor:
    """True where a key's chunk is the query's own or the one before it, among `count` in a ring."""
    return (key_chunk == query_chunk) | (key_chunk == (query_chunk - 1) % count)


def _weights(chunk: int, call: Call, rows: Tensor) -> Tensor:
    """Every pair, hidden by chunks and mask: the definition."""
    tokens = call.q.shape[2]
    where = chunks_of(sorted_order(call), chunk)  # [N, B, H, J]
    near = _beside(where[..., rows].unsqueeze(-1), where.unsqueeze(-2), -(-tokens // chunk)).any(0)
    logits = call.q[:, :, rows] @ normalize(call.q, dim=-1).mT * call.scale
    logits = _wide(logits)  # float16 has no -10^5
    own = rows.unsqueeze(-1) == torch.arange(tokens, device=rows.device)
    visible = call.mask.visible(rows)
    logits = hide(logits.masked_fill(own, SELF), near if visible is None else near & visible)
    return softmax_rows(logits).to(call.q.dtype)


def _dense(chunk: int, call: Call, lse: bool) -> Run:
    """The definition for all rows at once, in float32 at least: [B, H, I, I] of logits and of chunk comparisons."""
    mask = call.mask.to(call.q.device)
    rows = torch.arange(call.q.shape[2], device=call.q.device)

    def run(call: Call) -> Output:
        told = _shared(call, mask).map(_wide)
        out = _weights(chunk, told, rows) @ repeat_heads(told.v, call.q.shape[1])
        return Output(out.to(call.q.dtype))

    return run


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _shared(call: Call, mask: Mask) -> Call:
    return replace(call, mask=mask)


def _sorted(chunk: int, call: Call, lse: bool) -> Run:
    """Tokens gathered in hash order, each chunk against itself and the one before, rounds merged by their sums."""
    mask = call.mask.to(call.q.device)
    return lambda call: Output(_rounds(chunk, _shared(call, mask)))


def _rounds(chunk: int, call: Call) -> Tensor:
    q, v = _wide(call.q), _wide(repeat_heads(call.v, call.q.shape[1]))
    k = normalize(q, dim=-1)
    order = sorted_order(call)
    where = chunks_of(order, chunk)
    parts = [_round(call, q, k, v, one, where, chunk) for one in order]
    logits = torch.stack([logit for _, logit in parts])  # log-sum-exp of each round [N, B, H, I]
    top = logits.detach().amax(0)
    shares = (logits - torch.where(top.isneginf(), 0.0, top)).exp()
    total = shares.sum(0).unsqueeze(-1)
    out = sum((s.unsqueeze(-1) * o for s, (o, _) in zip(shares, parts, strict=True)), start=torch.zeros_like(v))
    return (out / total.masked_fill(total == 0, 1.0)).to(call.q.dtype)


def _round(
    call: Call, q: Tensor, k: Tensor, v: Tensor, order: Tensor, where: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """One round: (softmax output [B, H, I, E], log-sum-exp [B, H, I]), a pair found in m rounds weighing 1/m."""
    tokens = order.shape[-1]
    count = -(-tokens // chunk)
    padded = pad(order, (0, count * chunk - tokens), value=-1).unflatten(-1, (count, chunk))  # token of each place
    back = padded if count == 1 else torch.cat([padded.roll(1, -2), padded], -1)  # keys of each chunk
    mine, theirs = padded.clamp_min(0), back.clamp_min(0)
    logits = _taken(q, mine) @ _taken(k, theirs).mT * call.scale  # [B, H, chunks, C, 2C]
    logits = logits.masked_fill(mine.unsqueeze(-1) == theirs.unsqueeze(-2), SELF)
    seen = (back >= 0).unsqueeze(-2) & _allowed(call.mask, mine.unsqueeze(-1), theirs.unsqueeze(-2))
    logits = hide(logits - _times_found(where, mine, theirs, count).to(logits.dtype).log(), seen)
    empty = logits.isneginf().all(-1)
    lse = torch.logsumexp(logits.masked_fill(empty.unsqueeze(-1), 0.0), -1).masked_fill(empty, float("-inf"))
    out = softmax_rows(logits) @ _taken(v, theirs)
    places = order.argsort(-1)  # the place of each token, to go back
    out, lse = out.flatten(2, 3), lse.flatten(2, 3)
    return out.gather(2, places.unsqueeze(-1).expand(*places.shape, out.shape[-1])), lse.gather(2, places)


def _taken(x: Tensor, at: Tensor) -> Tensor:
    """x [B, H, I, D] at token indices [B, H, chunks, C] -> [B, H, chunks, C, D]."""
    flat = at.flatten(2).unsqueeze(-1)
    return x.gather(2, flat.expand(*flat.shape[:3], x.shape[-1])).view(*at.shape, x.shape[-1])


def _allowed(mask: Mask, r: Tensor, c: Tensor) -> Tensor:
    if mask.full:
        return torch.ones((), dtype=torch.bool, device=r.device)
    b = torch.arange(r.shape[0], device=r.device).view(-1, 1, 1, 1, 1)
    h = torch.arange(r.shape[1], device=r.device).view(1, -1, 1, 1, 1)
    return mask.allows(b.clamp_max(mask.shape[0] - 1), h, r, c)


def _times_found(where: Tensor, mine: Tensor, theirs: Tensor, count: int) -> Tensor:
    """In how many rounds each pair [B, H, chunks, C, 2C] of tokens meets."""
    found = torch.zeros((), dtype=torch.int32, device=where.device)
    for one in where:
        chunk_of = partial(_looked_up, one)
        found = found + _beside(chunk_of(mine).unsqueeze(-1), chunk_of(theirs).unsqueeze(-2), count)
    return found.clamp_min(1)  # places past the end repeat token 0 and are hidden


def _looked_up(table: Tensor, at: Tensor) -> Tensor:
    return table.gather(-1, at.flatten(2)).view(at.shape)


def implementations(rounds: int = 2, chunk: int = 64) -> list[Implementation]:
    """Both forms; raises ValueError for counts below 1."""
    for name, value in (("rounds", rounds), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    rotations = Parameter(
        "N D Z", "random", sizes={"N": rounds, "Z": partial(_half_buckets, chunk)}, dtype="float32"
    )  # float32: rounding it would change who sees whom
    variant = Variant(
        "reformer_lsh",
        weights=partial(_weights, chunk),
        parameters={"rotations": rotations},
        couples=frozenset({"queries", "keys"}),
        continuous=False,
        self_only=True,
        paper="Kitaev, Kaiser, Levskaya 2020, arXiv 2001.04451",
        formula="A = softmax over chunk neighbours in hash order of scale · q_i·q_j/|q_j|, the own token last",
        cost="time O(rounds·I·(chunk·(D+E) + log I) + rounds·I²·D/chunk hashing); memory O(rounds·I·chunk)",
        approximates="softmax",
    )
    support = Support(cross=False)
    return [
        Implementation("dense", variant, partial(_dense, chunk), support),
        Implementation("sorted", variant, partial(_sorted, chunk), support),
    ]
