"""One head of self-attention: three projections without bias, nothing after it.

Source: the sublayer of Vaswani et al. 2017, arXiv 1706.03762, §3.2.1, without §3.2.2's heads and output
projection; the form in which attention is first taught and in which mechanisms are compared apart.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attention_impls.contract import Implementation, Layer, Workload
from attention_impls.layer_parts import Attending, linear, only_self, width
from attention_impls.mask import Mask


class SingleHead(nn.Module):
    """x [B, I, M] -> attention(x·Wq, x·Wk, x·Wv) [B, I, E]."""

    def __init__(self, attention: Implementation, workload: Workload, generator: torch.Generator) -> None:
        super().__init__()
        m, w = width(workload), workload
        self.q = linear(m, w.head_dim, w, generator, bias=False)
        self.k = linear(m, w.head_dim, w, generator, bias=False)
        self.v = linear(m, w.value_dim, w, generator, bias=False)
        self.attention = Attending(attention, w, generator)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """Tokens [B, I, M] under a mask -> [B, I, E]."""
        q, k, v = (projection(x).unsqueeze(1) for projection in (self.q, self.k, self.v))  # [B, 1, I, D]
        out: Tensor = self.attention(x, q, k, v, mask)
        return out.squeeze(1)


def _refuses(attention: Implementation, workload: Workload) -> str | None:
    if workload.heads != 1:
        return f"it has one head; the workload has {workload.heads}: set heads to 1, or take multi_head"
    return only_self(workload)


LAYER = Layer(
    name="single_head",
    doc="Self-attention of one head: projections to q, k and v without bias, and no output projection.",
    build=SingleHead,
    refuses=_refuses,
)
