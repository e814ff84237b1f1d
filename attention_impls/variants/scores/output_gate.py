"""Gated attention: out = gate ⊙ softmax(scale · q kᵀ) v, a gate in (0, 1) for every query, head and value number.

gate [B, H, I, E] = σ(W x) is a function of the tokens: inside a layer a projection of x, squashed. Source: Qiu et al.
2025, "Gated Attention for Large Language Models", arXiv 2505.06708, of whose places and shapes this is the one they
recommend (after the product with v, each head for itself, by element). A gate of ones is `softmax`. The gate is
applied to what any softmax kernel gives: there is no cheaper place for it, since it knows nothing of keys.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Implementation, Output, Parameter, Run
from attention_impls.through import softmax_kernel
from attention_impls.variants.exact.tiles import tiles
from attention_impls.variants.scores.softmax import SOFTMAX


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=generator).sigmoid()


def _finish(out: Tensor, call: Call, rows: Tensor) -> Tensor:
    return out * call.parameters["gate"][:, :, rows]


OUTPUT_GATE = replace(
    SOFTMAX,
    name="output_gate",
    parameters={"gate": Parameter("B H I E", "token", draw=_draw, squash=torch.sigmoid)},
    row_stochastic=False,
    finish=_finish,
    paper="Qiu et al. 2025, arXiv 2505.06708",
    formula="out = gate ⊙ softmax(scale · q kᵀ) v, gate = σ(W x), scale = D^-1/2",
    cost="as softmax, and O(I·E) for the gate",
)


def _gated(inner: Implementation) -> Implementation:
    """A softmax kernel and one product of numbers after it."""

    def ungated(call: Call) -> Call:
        return replace(call, parameters={}, axes={})

    def prepare(call: Call, lse: bool) -> Run:
        run = inner.prepare(ungated(call), lse)

        def gated(call: Call) -> Output:
            out, total = run(ungated(call))
            return Output(out * call.parameters["gate"], total)

        return gated

    return replace(inner, variant=OUTPUT_GATE, prepare=prepare, configure=None)


def tiled(block: int = 128) -> Implementation:
    """Softmax's tiles of `block` queries × `block` keys, their output gated."""
    return replace(_gated(tiles(block)), configure=tiled)


IMPLEMENTATIONS = [_gated(softmax_kernel("naive")), _gated(softmax_kernel("sdpa_flash")), tiled()]
