"""General attention (Luong's "general", bilinear): A = softmax(q W kᵀ), W [H, D, D] learned, unscaled.

It is dot attention after each head has projected its queries: how it is computed here. W the identity
gives dot; W = D^-1/2 · identity gives scaled dot-product attention. W is drawn so that the logits of unit
normal inputs have unit variance.

Source: Luong, Pham and Manning 2015, arXiv 1508.04025.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Parameter
from attention_impls.makers import recast, softmax_of
from attention_impls.through import softmax_kernel


def _logits(call: Call, rows: Tensor) -> Tensor:
    return torch.einsum("bhid,hdf,bhjf->bhij", call.q[:, :, rows], call.parameters["w"], call.k) * call.scale


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=generator) / shape[-1]


def _unscaled(head_dim: int) -> float:
    return 1.0


GENERAL = softmax_of(
    "general",
    _logits,
    parameters={"w": Parameter("H D F", "weight", draw=_draw, sizes={"F": "D"})},
    scale=_unscaled,
    paper="Luong et al. 2015, arXiv 1508.04025",
    formula="A = softmax(q W kᵀ)",
    cost="as softmax, and O(I·D²) for the projection",
)


def _projected(call: Call) -> Call:
    """The call of dot attention whose queries are q W."""
    return replace(call, q=call.q @ call.parameters["w"], parameters={}, axes={})


IMPLEMENTATIONS = recast(GENERAL, _projected, softmax_kernel("naive"), softmax_kernel("sdpa_flash"))
