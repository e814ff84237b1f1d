"""Multi-head self-attention in its standard form, each projection a plain nn.Linear, any implementation inside.

Four separate projections with bias, so that quantisers and pruners, which look for nn.Linear, find them.
With kv_heads < heads the k and v projections are narrower (grouped queries).
Bytes held for the backward in float32: q, k and v; what the kernel holds by its own formula, its output among it (with
its heads side by side: a view of it, or a copy in its place); and y.
Source: Vaswani et al. 2017, arXiv 1706.03762, §3.2.2; grouped queries: Ainslie et al. 2023, arXiv 2305.13245.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attention_impls.contract import Implementation, Layer, Workload
from attention_impls.footprint import tokens
from attention_impls.layer_parts import Attending, join_heads, linear, only_self, split_heads, width
from attention_impls.mask import Mask


class MultiHead(nn.Module):
    """x [B, I, M] -> o(attention(q(x), k(x), v(x))) [B, I, M], heads side by side."""

    def __init__(self, attention: Implementation, workload: Workload, generator: torch.Generator) -> None:
        super().__init__()
        m, w = width(workload), workload
        self._heads, self._kv_heads = w.heads, w.kv_heads
        self.q = linear(m, w.heads * w.head_dim, w, generator)
        self.k = linear(m, w.kv_heads * w.head_dim, w, generator)
        self.v = linear(m, w.kv_heads * w.value_dim, w, generator)
        self.o = linear(w.heads * w.value_dim, m, w, generator)
        self.attention = Attending(attention, w, generator)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """Tokens [B, I, M] under a mask -> [B, I, M]."""
        q = split_heads(self.q(x), self._heads)  # [B, H, I, D]
        k = split_heads(self.k(x), self._kv_heads)  # [B, G, I, D]
        v = split_heads(self.v(x), self._kv_heads)  # [B, G, I, E]
        y: Tensor = self.o(join_heads(self.attention(x, q, k, v, mask)))
        return y


def held_by_attention(attention: Implementation, w: Workload) -> int | None:
    """The formula above; None where the kernel has none, or other than one head size would enter it."""
    own = attention.footprint.held
    if own is None or w.head_dim != w.value_dim or w.dtype != "f32":
        return None
    x = tokens(w)
    return x + 2 * x * w.kv_heads // w.heads + own(w) + x


LAYER = Layer(
    name="multi_head",
    doc="Self-attention of H heads: projections to q, k and v, the implementation, and an output projection.",
    build=MultiHead,
    refuses=lambda attention, workload: only_self(workload),
    held=held_by_attention,
)
