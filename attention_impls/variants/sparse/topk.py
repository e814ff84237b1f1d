"""Top-k attention: each query attends to the k visible keys with the largest logits, exactly k of them.

A_i = softmax over T_i of scale · q_i·k_j, where T_i holds the k largest of the logits that i may see (all, if there are
fewer). Of equal logits, compared as float32 numbers worked out in float64, the earlier key is taken; the
paper's rule (and that of x-transformers) keeps every logit that is not below the k-th, which is more than
k where some tie with it: the same set otherwise. The choice has no gradient. With k of at least the number
of keys it is `softmax`. Not continuous: a small change may exchange the k-th key for the next.

Source: Zhao et al. 2019, "Explicit Sparse Transformer", arXiv 1912.11637. All logits are computed either way: the
saving is in the softmax and in the product with v. Option: k.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, hide
from attention_impls.choosing import Choose, among_best, best, dense, exact, gathered, may_see, products, shown
from attention_impls.contract import Implementation, Support
from attention_impls.makers import softmax_of
from attention_impls.tiling import checked


def _logits(k: int, call: Call, rows: Tensor) -> Tensor:
    """The definition: logits of the kept keys, -inf elsewhere."""
    q = call.q[:, :, rows]
    compared = hide(exact(q) @ exact(call.k).mT * call.scale, call.mask.visible(rows))
    return hide(q @ call.k.mT * call.scale, among_best(compared, k))


def _chosen(k: int, call: Call) -> Tensor:
    """Columns [B, H, R, k] of the largest logits."""
    compared = products(exact(call.q), exact(call.k)) * call.scale
    return best(hide(compared, shown(call.mask, call.q.device)), k)


def _chooser(k: int, call: Call) -> Choose:
    def choose(part: Call) -> tuple[Tensor, Tensor]:
        at = _chosen(k, part)
        return at, may_see(part.mask, at)

    return choose


def _kept(k: int, call: Call) -> Tensor:
    kept = torch.zeros((*call.q.shape[:3], call.k.shape[2]), dtype=torch.bool, device=call.q.device)
    return kept.scatter_(-1, _chosen(k, call), True)


def implementations(k: int = 64) -> list[Implementation]:
    """Both forms for k keys a query. Raises ValueError for k below 1."""
    checked("k", k)
    variant = softmax_of(
        "topk",
        partial(_logits, k),
        couples=frozenset({"keys"}),
        continuous=False,
        paper="Zhao et al. 2019, arXiv 1912.11637",
        formula="A = softmax over the k largest visible logits scale · q·k of each row",
        cost="time O(I·J·D + I·k·E); memory O(rows·J + I·k·(D+E)) gathered, O(I·J) dense",
    )
    support = Support(lse="differentiable")
    return [dense(variant, partial(_kept, k), support), gathered(variant, partial(_chooser, k), support)]
