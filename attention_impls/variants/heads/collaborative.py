"""Collaborative heads: every head looks at all heads' query and key dimensions, weighted by a mixing vector of its own.

A_h = softmax over visible keys of scale · Σ_{g,d} mix[h, g, d] q_gid k_gjd;  out_h = A_h v_h, with mix [H, H, D]: the
queries and keys of all heads, side by side, are one shared pair of size H·D. With mix[h, g, d] = 1 where g = h and 0
elsewhere, heads that do not share, it is `softmax`. Grouped heads repeat their key in each query head's place.
Source: Cordonnier, Loukas, Jaggi 2020, "Multi-Head Attention: Collaborate Instead of Concatenate", arXiv 2006.16362
(eq. 6; its point, a shared size below H·D, is dimensions whose mix is 0 in every head). The scale stays D^-1/2.
A mask that differs between heads is told as usual: it hides logits after mixing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads, softmax_for
from attention_impls.contract import Implementation, Parameter
from attention_impls.makers import of_call, softmax_of
from attention_impls.through import softmax_kernel, through
from attention_impls.variants.exact.tiles import tiles


def _own_and_a_little(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """The heads' own dimensions and a fifth of a normal mix over √H of all: to be seen, logits of the usual size."""
    heads = shape[0]
    return torch.eye(heads).unsqueeze(-1) + 0.2 * torch.randn(shape, generator=generator) / math.sqrt(heads)


def _logits(call: Call, rows: Tensor) -> Tensor:
    """The definition: one head after another, over all heads' products in each dimension."""
    q = call.q[:, :, rows]
    mixed = [((q * mix.unsqueeze(1)) @ call.k.mT).sum(1) for mix in call.parameters["mix"]]
    return torch.stack(mixed, 1) * call.scale


COLLABORATIVE = softmax_of(
    "collaborative",
    _logits,
    parameters={"mix": Parameter("H S D", "weight", draw=_own_and_a_little, sizes={"S": "H"})},
    couples=frozenset({"heads"}),
    paper="Cordonnier, Loukas, Jaggi 2020, arXiv 2006.16362",
    formula="A_h = softmax(scale · Σ_gd mix_hgd q_gd k_gd)",
    cost="time O(I·J·H·(H·D+E)), memory O(H·I·J) materialised, O(H·I·(H·D+E)) in tiles",
)


def _shared(x: Tensor, heads: int) -> Tensor:
    """[B, G, T, D] -> [B, T, H·D]: all heads side by side."""
    return repeat_heads(x, heads).transpose(1, 2).flatten(-2)


def _naive(call: Call) -> Tensor:
    """All heads' mixed queries as rows of one product with the shared keys."""
    batch, heads, rows = call.q.shape[:3]
    mix = call.parameters["mix"].flatten(1)  # [H, H·D]
    queries = (_shared(call.q, heads).unsqueeze(1) * mix.unsqueeze(1)).flatten(1, 2)  # [B, H·I, H·D]
    logits = (queries @ _shared(call.k, heads).mT * call.scale).view(batch, heads, rows, call.k.shape[2])
    visible = call.mask.visible()
    weights = softmax_for(call.mask)(hide(logits, visible if visible is None else visible.to(logits.device)))
    return weights @ repeat_heads(call.v, heads)


def _widened(call: Call) -> Call:
    """Softmax attention of H heads with q [B, H, I, H·D] and the shared keys expanded to every head."""
    heads = call.q.shape[1]
    queries = _shared(call.q, heads).unsqueeze(1) * call.parameters["mix"].flatten(1).unsqueeze(1)
    keys = _shared(call.k, heads).unsqueeze(1).expand(-1, heads, -1, -1)
    return replace(call, q=queries, k=keys, v=repeat_heads(call.v, heads), parameters={}, axes={})


def _unchanged(out: Tensor, call: Call) -> Tensor:
    return out


IMPLEMENTATIONS: list[Implementation] = [
    of_call(COLLABORATIVE, _naive),
    through(softmax_kernel("sdpa_math"), COLLABORATIVE, _widened, _unchanged),
    through(tiles(), COLLABORATIVE, _widened, _unchanged),
]
