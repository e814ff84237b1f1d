"""ReLU attention: A_ij = relu(scale · q_i·k_j)^power / n, n the number of keys; rows do not sum to 1.

1/n is a constant of the call, `share` [J], one number a key so that a part of the keys keeps the n of the whole.
Hidden keys count in n and weigh 0; a query that sees none gives zeros. Results over disjoint keys are added.
Source: Wortsman et al. 2023, "Replacing softmax with ReLU in Vision Transformers", arXiv 2309.08586: power 1 is its
ReLU attention, 2 its squared form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Implementation, Parameter, Variant
from attention_impls.scored import dot, naive, shown
from attention_impls.scored_tiles import tiled
from attention_impls.tiling import checked


def _one_in_n(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """1/n for every key."""
    return torch.full(shape, 1.0 / shape[0])


def implementations(power: int = 1) -> list[Implementation]:
    """ReLU attention raised to a whole `power`. Raises ValueError below 1."""
    checked("power", power)

    def weights(call: Call, rows: Tensor) -> Tensor:
        logits = call.q[:, :, rows] @ call.k.mT * call.scale
        shares = torch.relu(logits) ** power * call.parameters["share"]
        return shown(shares, call.mask.visible(rows)).to(call.q.dtype)

    def score(part: Call) -> Tensor:
        return dot(part).clamp(min=0.0).pow(power) * part.parameters["share"]

    variant = Variant(
        "relu",
        weights=weights,
        parameters={"share": Parameter("J", "constant", draw=_one_in_n, dtype="float32")},
        join="sum",
        row_stochastic=False,
        paper="Wortsman et al. 2023, arXiv 2309.08586",
        formula="A_ij = relu(scale · q_i·k_j)^power / n, scale = D^-1/2",
        cost="time O(I·J·D); memory O(I·J) materialised, O(I) tiled",
    )
    return [naive(variant, score), tiled(variant, score)]
