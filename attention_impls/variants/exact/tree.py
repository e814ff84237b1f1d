"""softmax.tree: keys over `ranks` machines, joined by three all-reduces, simulated in one process.

Exact. Every rank scores all queries against its own share of the keys, which never move. Then
    a = max over ranks of their largest score,    total = Σ over ranks of Σ_j e^(s_j − a),
    values = Σ over ranks of Σ_j e^(s_j − a) v_j,    out = values / total,
where each reduction goes up a binary tree: its depth grows with log2(ranks), not with ranks as a ring's does.
Made for decoding: queries are few and are held by everybody. Ranks of whose keys nothing is visible stand aside.
What is simulated is who computes what and in which order; the time of messages is not in it.

Source: Shyam et al. 2024, "Tree Attention", arXiv 2408.04093.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attention_impls.call import Call, wide
from attention_impls.contract import Implementation, Run, Support
from attention_impls.running import Sums, answer, finite, fold, folded_scores, nothing, output
from attention_impls.tiling import Tile, bands, checked
from attention_impls.variants.scores.softmax import SOFTMAX


def tree(ranks: int = 4) -> Implementation:
    """softmax with keys over `ranks` machines. Raises ValueError below 1."""
    checked("ranks", ranks)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        (rows,) = bands(mask, mask.q_len, -(-mask.kv_len // ranks))  # one tile of all queries a rank
        return lambda call: output(answer(_reduced(call, rows.tiles), call), lse)

    return Implementation("tree", SOFTMAX, prepare, Support(lse="differentiable"), configure=tree)


def _reduced(call: Call, shares: tuple[Tile, ...]) -> Sums:
    """The sums over all keys, folded. The common maximum only shifts exponents: no gradient flows through it."""
    heads = call.q.shape[1]
    queries = fold(call.q, call.k.shape[1]) * call.scale
    if not shares:
        return nothing(queries, call.v.shape[3])
    scores = [folded_scores(queries, call.k[:, :, s.lo : s.hi], s.visible, heads) for s in shares]
    top = all_reduce(torch.maximum, [own.detach().amax(-1, keepdim=True) for own in scores])
    weights = [(own - finite(top)).exp() for own in scores]
    total = all_reduce(torch.add, [own.sum(-1, keepdim=True) for own in weights])
    values = [own @ wide(call.v[:, :, s.lo : s.hi]) for own, s in zip(weights, shares, strict=True)]
    return Sums(all_reduce(torch.add, values), total, top)


def all_reduce(op: Callable[[Tensor, Tensor], Tensor], parts: Sequence[Tensor]) -> Tensor:
    """`op` over all parts, neighbours first: ceil(log2(parts)) levels."""
    while len(parts) > 1:
        joined = [op(one, other) for one, other in zip(parts[::2], parts[1::2], strict=False)]
        parts = joined if len(parts) % 2 == 0 else [*joined, parts[-1]]
    return parts[0]


IMPLEMENTATIONS = [tree()]
