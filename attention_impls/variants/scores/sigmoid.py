"""Sigmoid attention: A_ij = σ(scale · q_i·k_j + β_j); every key is weighed for itself, rows do not sum to 1.

β [J] is −log n by default, n the number of keys, so that a row of zero logits sums to about 1; it is a constant of
the call, one number a key so that a part of the keys keeps the n of the whole. A hidden key weighs 0, and a query
that sees none gives zeros. Results over disjoint keys are added: no kernel needs a statistic of the row.

Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", arXiv 2409.04431.
x-transformers leaves β out, which is β = 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Parameter, Variant
from attention_impls.scored import dot, naive, shown
from attention_impls.scored_tiles import tiled


def _weights(call: Call, rows: Tensor) -> Tensor:
    logits = call.q[:, :, rows] @ call.k.mT * call.scale + call.parameters["beta"]
    return shown(torch.sigmoid(logits), call.mask.visible(rows)).to(call.q.dtype)


def _minus_log_n(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """−log n for every key."""
    return torch.full(shape, -math.log(shape[0]))


SIGMOID = Variant(
    "sigmoid",
    weights=_weights,
    # float32 in every workload: rounding β to 8 bits would change every weight by up to 2 %
    parameters={"beta": Parameter("J", "constant", draw=_minus_log_n, dtype="float32")},
    join="sum",
    row_stochastic=False,
    paper="Ramapuram et al. 2024, arXiv 2409.04431",
    formula="A_ij = σ(scale · q_i·k_j − log n), scale = D^-1/2",
    cost="time O(I·J·D); memory O(I·J) materialised, O(I) tiled",
)


def _score(part: Call) -> Tensor:
    return torch.sigmoid(dot(part) + part.parameters["beta"])


IMPLEMENTATIONS = [naive(SIGMOID, _score), tiled(SIGMOID, _score)]
