"""Luna: a few learned queries pack the keys and values into as many, and the queries read those.

S = softmax(scale · p kᵀ) [P, J] over visible keys; A = softmax(scale · q (S k)ᵀ) S: packed keys S k and packed
values S v, [P, D] and [P, E] a key/value head; p [G, P, D] learned. Rows sum to 1. A function of its own, linear in
I and J; with p = k and S the identity it would be softmax attention. With P = 1 every query gets the same row.

Source: Ma et al. 2021, "Luna: Linear Unified Nested Attention", arXiv 2106.01540: its pack and unpack steps without
the projections between them and without the packed sequence handed to the next layer. Option: packed, the size P.
Packing mixes all positions: masks must hide the same keys from every query; the causal Luna is another function.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads, softmax_rows
from attention_impls.contract import Implementation, Parameter, Variant
from attention_impls.low_rank import SAME_KEYS, OverKeys, low_rank
from attention_impls.tiling import checked


def _weights(call: Call, rows: Tensor) -> Tensor:
    pack = softmax_rows(hide(call.parameters["p"] @ call.k.mT * call.scale, call.mask.visible(rows[:1])))
    unpack = torch.softmax(call.q[:, :, rows] @ (pack @ call.k).mT * call.scale, -1)
    return unpack @ pack


def _factors(call: Call, over_keys: OverKeys) -> tuple[Tensor, Tensor]:
    pack = over_keys((call.parameters["p"] * call.scale) @ call.k.mT)  # [B, G, P, J]
    packed = repeat_heads(pack @ call.k, call.q.shape[1])
    return torch.softmax(call.q @ (packed * call.scale).mT, -1), pack


def implementations(packed: int = 64) -> list[Implementation]:
    """The two forms with `packed` learned queries. Raises ValueError for fewer than one."""
    variant = Variant(
        "luna",
        weights=_weights,
        parameters={"p": Parameter("G P D", "weight", sizes={"P": checked("packed", packed)})},
        couples=frozenset({"keys"}),
        masks=SAME_KEYS,
        paper="Ma et al. 2021, arXiv 2106.01540",
        formula="A = softmax(scale · q (S k)ᵀ) S, S = softmax(scale · p kᵀ)",
        cost="time O((I+J)·P·(D+E)), memory O((I+J)·P)",
    )
    return low_rank(variant, _factors)
