"""L2 attention: A = softmax(−scale · |q − k|²): a query looks at the keys that lie near it. scale = D^-1/2.

Source: Kim, Papamakarios, Mnih 2020, "The Lipschitz Constant of Self-Attention", arXiv 2006.04710, where queries and
keys share their projection and values are projected once more: here the logits alone. Against dot products each key
pays for its length: it is `softmax` of twice the scale where all keys have the same length.
"""

from __future__ import annotations

from torch import Tensor

from attention_impls.call import Call
from attention_impls.makers import softmax_of
from attention_impls.scored import naive
from attention_impls.scored_tiles import tiled


def _logits(call: Call, rows: Tensor) -> Tensor:
    """Through every difference: [B, H, R, J, D]."""
    differences = call.q[:, :, rows].unsqueeze(3) - call.k.unsqueeze(2)
    return -call.scale * differences.square().sum(-1)


L2_DISTANCE = softmax_of(
    "l2_distance",
    _logits,
    paper="Kim, Papamakarios, Mnih 2020, arXiv 2006.04710",
    formula="A = softmax(−scale · |q − k|²), scale = D^-1/2",
    cost="time O(I·J·D); memory O(I·J) materialised, O(I) tiled",
)


def _score(part: Call) -> Tensor:
    """−|q − k|² = 2 q·k − |q|² − |k|²: one product of matrices, no [R, C, D]."""
    of_q, of_k = (x.square().sum(-1) for x in (part.q, part.k))  # [B, H, R], [B, H, C]
    twice: Tensor = 2.0 * (part.q @ part.k.mT)
    return (twice - of_q.unsqueeze(-1) - of_k.unsqueeze(-2)) * part.scale


IMPLEMENTATIONS = [naive(L2_DISTANCE, _score), tiled(L2_DISTANCE, _score)]
