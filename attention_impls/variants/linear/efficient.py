"""Efficient attention: queries normalised over features, keys over positions, and no matrix of pairs.

A = softmax_D(q) · softmax_J(k)ᵀ: a row is a mixture, with weights softmax(q_i), of D maps over positions, the
columns of k after their softmax over visible keys. So A v = softmax_D(q) (softmax_J(k)ᵀ v) [D, E] in the middle. A
function of its own, no approximation of softmax attention; rows sum to 1; it has no scale (a library divides the
output by √D). A key's share depends on all keys that are seen, so the mask must hide the same ones from every
query: there is no causal form. With one visible key it is softmax attention: both give that key's value.

Source: Shen et al. 2018, "Efficient Attention: Attention with Linear Complexities", arXiv 1812.01243.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_impls.call import Call, hide, softmax_rows
from attention_impls.contract import Variant
from attention_impls.low_rank import SAME_KEYS, OverKeys, low_rank
from attention_impls.undefined import no_scale, one


def _weights(call: Call, rows: Tensor) -> Tensor:
    visible = call.mask.visible(rows[:1])  # the same for every row
    maps = softmax_rows(hide(call.k.mT, visible))  # [B, H, D, J]
    return torch.softmax(call.q[:, :, rows], -1) @ maps


EFFICIENT = Variant(
    "efficient",
    weights=_weights,
    masks=SAME_KEYS,
    scale=one,
    why_not=no_scale("efficient"),
    paper="Shen et al. 2018, arXiv 1812.01243",
    formula="A = softmax_D(q) softmax_J(k)ᵀ",
    cost="time O((I+J)·D·E), memory O((I+J)·D + D·E); materialised O(I·J·D) and O(I·J)",
)


def _factors(call: Call, over_keys: OverKeys) -> tuple[Tensor, Tensor]:
    return torch.softmax(call.q, -1), over_keys(call.k.mT)


IMPLEMENTATIONS = low_rank(EFFICIENT, _factors)
