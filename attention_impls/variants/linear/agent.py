"""Agent attention: a few means of queries stand between queries and keys.

a [M, D] are means of M = min(agents, I) runs of queries, as even as can be (longer ones first); A = softmax(scale ·
q aᵀ) softmax(scale · a kᵀ) over visible keys. Rows sum to 1. A function of its own, linear in I and J; a
generalised linear attention whose features of q and k are those softmaxes. With one agent every query gets the same
row, softmax attention of the mean query.

Source: Han et al. 2023, "Agent Attention", arXiv 2312.08874, for images: there agents are pooled over a grid of
tokens, both softmaxes have a learned bias, and a depthwise convolution of the values is added; all three left out.
Option: agents. A mean mixes queries, later ones too: no causal form.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads, softmax_rows
from attention_impls.contract import Implementation, Variant
from attention_impls.low_rank import SAME_KEYS, OverKeys, low_rank, segment_means
from attention_impls.tiling import checked


def _weights(agents: int, call: Call, rows: Tensor) -> Tensor:
    runs = call.q.tensor_split(min(agents, call.q.shape[2]), 2)
    means = torch.stack([run.mean(2) for run in runs], 2)  # [B, H, M, D]
    gather = softmax_rows(hide(means @ call.k.mT * call.scale, call.mask.visible(rows[:1])))
    return torch.softmax(call.q[:, :, rows] @ means.mT * call.scale, -1) @ gather


def _factors(agents: int, call: Call, over_keys: OverKeys) -> tuple[Tensor, Tensor]:
    means = segment_means(call.q, min(agents, call.q.shape[2])) * call.scale
    gather = over_keys(means @ repeat_heads(call.k, call.q.shape[1]).mT)
    return torch.softmax(call.q @ means.mT, -1), gather


def implementations(agents: int = 64) -> list[Implementation]:
    """The two forms with `agents` means of queries. Raises ValueError for fewer than one."""
    variant = Variant(
        "agent",
        weights=partial(_weights, checked("agents", agents)),
        couples=frozenset({"queries", "keys"}),
        masks=SAME_KEYS,
        paper="Han et al. 2023, arXiv 2312.08874",
        formula="A = softmax(scale · q aᵀ) softmax(scale · a kᵀ), a means of runs of queries",
        cost="time O((I+J)·M·(D+E)), memory O((I+J)·M)",
    )
    return low_rank(variant, partial(_factors, agents))
