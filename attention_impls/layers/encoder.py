"""A stack of Transformer encoder layers: self-attention and a feed-forward net, each with a residual and a LayerNorm.

pre:  x = x + attention(norm(x));  x = x + feed_forward(norm(x))       (Xiong et al. 2020, arXiv 2002.04745)
post: x = norm(x + attention(x));  x = norm(x + feed_forward(x))       (Vaswani et al. 2017, arXiv 1706.03762, §3)

feed_forward(x) = down(activation(up(x))), `ffn` times as wide as a token. The attention is `multi_head` with any
implementation inside. Blocks stand in the list `blocks`, each called as block(x, mask), so that what works on blocks
(a checkpoint, a pruner) needs to know no more. There is no norm behind the last block, as in nn.TransformerEncoder
without one.

Bytes held for the backward in float32, with X = 4·B·n·M. Of each block what its attention holds (see `multi_head`),
less the X of its output, which nobody needs once it is added; the sums behind both branches and what the norms make
of them, 4X (the last is the block's output; the input of the first belongs to the block before); the inner tokens,
2·F·X for a net of F times the width (`relu` keeps its result alone, F·X); two numbers a token for each norm, 16·B·n.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from attention_impls.contract import Implementation, Layer, Workload
from attention_impls.footprint import tokens
from attention_impls.layer_parts import linear, only_self, width
from attention_impls.layers.multi_head import MultiHead, held_by_attention
from attention_impls.mask import Mask

NORMS = ("pre", "post")
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU}
EPS = 1e-5


class Block(nn.Module):
    """One encoder layer: x [B, I, M] under a mask -> [B, I, M]. dropout: on both branches, by the global generator."""

    def __init__(
        self,
        attention: Implementation,
        workload: Workload,
        generator: torch.Generator,
        *,
        pre: bool = True,
        ffn: int = 4,
        activation: str = "gelu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        m, self._pre = width(workload), pre
        self.attention = MultiHead(attention, workload, generator)
        self.up, self.down = linear(m, ffn * m, workload, generator), linear(ffn * m, m, workload, generator)
        self.norm1, self.norm2 = (nn.LayerNorm(m, eps=EPS, dtype=workload.torch_dtype) for _ in range(2))
        self.activation, self.dropout = ACTIVATIONS[activation](), nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """Tokens [B, I, M] under a mask -> [B, I, M]."""
        if self._pre:
            x = x + self.dropout(self.attention(self.norm1(x), mask))
            y: Tensor = x + self.dropout(self._feed_forward(self.norm2(x)))
            return y
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        y = self.norm2(x + self.dropout(self._feed_forward(x)))
        return y

    def _feed_forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.activation(self.up(x)))
        return y


class Encoder(nn.Module):
    """Blocks one after the other: x [B, I, M] under a mask -> [B, I, M]."""

    def __init__(
        self,
        layers: int,
        pre: bool,
        ffn: int,
        activation: str,
        attention: Implementation,
        workload: Workload,
        generator: torch.Generator,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        made = partial(Block, attention, workload, generator, pre=pre, ffn=ffn, activation=activation, dropout=dropout)
        self.blocks = nn.ModuleList(made() for _ in range(layers))

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """Tokens [B, I, M] under a mask -> [B, I, M]."""
        for block in self.blocks:
            x = block(x, mask)
        return x


def _made(layers: int = 1, norm: str = "pre", ffn: int = 4, activation: str = "gelu") -> Layer:
    """The stack with its options. Raises ValueError for a norm or activation nobody knows, and for sizes below 1."""
    if norm not in NORMS or activation not in ACTIVATIONS:
        known = f"norm is {' or '.join(NORMS)}, activation {' or '.join(ACTIVATIONS)}"
        raise ValueError(f"encoder: {known}; got {norm}, {activation}")
    if layers < 1 or ffn < 1:
        raise ValueError(f"encoder: layers and ffn are 1 or more; got {layers}, {ffn}")
    return Layer(
        name="encoder",
        doc="Transformer encoder layers, pre-LN or post-LN, the attention inside any implementation.",
        build=partial(Encoder, layers, norm == "pre", ffn, activation),
        refuses=lambda attention, workload: only_self(workload),
        configure=_made,
        held=partial(_held, layers, ffn, activation),
    )


def _held(layers: int, ffn: int, activation: str, attention: Implementation, w: Workload) -> int | None:
    """The formula above, the output of the stack included."""
    inside = held_by_attention(attention, w)
    if inside is None:
        return None
    x, inner = tokens(w), {"gelu": 2, "relu": 1}[activation] * ffn
    return layers * (inside + (3 + inner) * x + 16 * w.batch * w.q_len)


LAYER = _made()
