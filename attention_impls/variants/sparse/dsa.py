"""DeepSeek sparse attention: a small indexer chooses k keys for each query, the same for every head.

I_ij = Σ_n w_in · relu(q'_in · k'_j) with index queries q' [B, I, N, C], index keys k' [B, J, C], shared by the N index
heads, and weights w [B, I, N]. A_i = softmax of scale · q_i·k_j over the k visible keys with the largest I_ij (all, if
there are fewer). Of equal indices, as float32 numbers worked out in float64, the earlier key is taken: a
query whose products are all negative ties everywhere. The choice has no gradient: in the paper the indexer
learns from a loss of its own, so q', k' and w get zeros here. With k of at least the number of keys it is `softmax`,
whatever the indexer says. Not continuous: a small change may exchange one key for another.

Source: DeepSeek-AI 2025, "DeepSeek-V3.2", arXiv 2512.02556. There the heads share one latent key (MLA) and the indexer
rotates its queries and keys; both are a layer's business. Options: k, index_heads (N), index_dim (C).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, hide
from attention_impls.choosing import Choose, among_best, best, dense, exact, gathered, may_see, shown
from attention_impls.contract import MASK_WORDS, Implementation, Parameter, Support
from attention_impls.makers import softmax_of
from attention_impls.tiling import checked


def _logits(k: int, call: Call, rows: Tensor) -> Tensor:
    """The definition: logits of the kept keys, -inf elsewhere; the index one index head after another."""
    queries, keys = exact(call.parameters["index_q"][:, rows]), exact(call.parameters["index_k"])
    weights = exact(call.parameters["index_w"][:, rows])
    index = torch.zeros(queries.shape[0], 1, len(rows), keys.shape[1], dtype=torch.float64)
    for n in range(queries.shape[2]):
        index[:, 0] += weights[:, :, n, None] * (queries[:, :, n] @ keys.mT).relu()
    kept = among_best(hide(index, call.mask.visible(rows)), k)
    return hide(call.q[:, :, rows] @ call.k.mT * call.scale, kept)


def _chosen(k: int, call: Call) -> Tensor:
    """Columns [B, 1, R, k] of the largest indices."""
    queries, keys, weights = (exact(call.parameters[name]) for name in ("index_q", "index_k", "index_w"))
    index = torch.einsum("brn,brnj->brj", weights, (queries @ keys.unsqueeze(1).mT).relu())
    return best(hide(index.unsqueeze(1), shown(call.mask, index.device)), k)


def _chooser(k: int, call: Call) -> Choose:
    groups = call.k.shape[1]

    def choose(part: Call) -> tuple[Tensor, Tensor]:
        at = _chosen(k, part).expand(-1, groups, -1, -1)  # each key/value head gathers for all its query heads
        return at, may_see(part.mask, at)

    return choose


def _kept(k: int, call: Call) -> Tensor:
    at = _chosen(k, call)
    kept = torch.zeros((*at.shape[:3], call.k.shape[2]), dtype=torch.bool, device=at.device)
    return kept.scatter_(-1, at, True)


def implementations(k: int = 64, index_heads: int = 4, index_dim: int = 32) -> list[Implementation]:
    """Both forms for k keys a query. Raises ValueError for a size below 1."""
    for name, size in (("k", k), ("index_heads", index_heads), ("index_dim", index_dim)):
        checked(name, size)
    sizes = {"N": index_heads, "C": index_dim}
    variant = softmax_of(
        "dsa",
        partial(_logits, k),
        parameters={
            "index_q": Parameter("B I N C", "token", sizes=sizes),
            "index_k": Parameter("B J C", "token", sizes=sizes),
            "index_w": Parameter("B I N", "token", sizes=sizes),
        },
        couples=frozenset({"keys"}),
        masks=MASK_WORDS - {"dense"},  # heads that see different keys cannot choose the same
        continuous=False,
        paper="DeepSeek-AI 2025, arXiv 2512.02556",
        formula="A = softmax of scale · q·k over the k keys with the largest Σ_n w_n relu(q'_n·k')",
        cost="time O(I·J·N·C + I·k·(D+E)); memory O(rows·N·J + rows·k·(D+E)) gathered, O(N·I·J) dense",
    )
    support = Support(masks=variant.masks, lse="differentiable")
    return [dense(variant, partial(_kept, k), support), gathered(variant, partial(_chooser, k), support)]
