"""softmax.grouped: key/value heads shared by H/G query heads, read where they lie and never repeated.

Exact. Queries are seen as [B, G, H/G, I, D] and keys as [B, G, J, D]; the group is an axis that only queries
have. The naive form copies each key/value head H/G times first: here nothing is copied, which is what makes
grouped-query attention cheap in memory traffic. G = H is multi-head attention, G = 1 multi-query attention.
Query head h reads key/value head ⌊h·G/H⌋ (interleaved). Scores are materialised, O(H·I·J).

Sources: Ainslie et al. 2023, arXiv 2305.13245 (grouped-query); Shazeer 2019, arXiv 1911.02150 (multi-query).
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, softmax_for
from attention_impls.contract import Implementation, Output, Run, Support
from attention_impls.variants.scores.softmax import SOFTMAX


def _prepare(call: Call, lse: bool) -> Run:
    mask, groups = call.mask.simplified().to(call.q.device), call.k.shape[1]
    visible, softmax = _by_group(mask.visible(), groups), softmax_for(mask)

    def run(call: Call) -> Output:
        queries = call.q.unflatten(1, (groups, -1))  # g: key/value head, r: query head within it
        scores = torch.einsum("bgrid,bgjd->bgrij", queries, call.k) * call.scale
        scores = hide(scores, visible)
        out = torch.einsum("bgrij,bgje->bgrie", softmax(scores), call.v)
        return Output(out.flatten(1, 2), lse_rows(scores).flatten(1, 2) if lse else None)

    return run


def _by_group(visible: Tensor | None, groups: int) -> Tensor | None:
    """[1|B, 1|H, I, J] as [1|B, 1|G, 1|H/G, I, J]."""
    if visible is None:
        return None
    apart: Tensor = visible.unflatten(1, (groups if visible.shape[1] > 1 else 1, -1))
    return apart


IMPLEMENTATIONS = [Implementation("grouped", SOFTMAX, _prepare, Support(lse="differentiable"))]
