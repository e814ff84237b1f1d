"""axial-attention 0.6.1 (P. Wang): its `AxialAttention` over rows and columns, with q, k and v handed in.

After Ho et al. 2019, arXiv 1912.12180; it adds the two axes by default, as `axial` does. Its projections of tokens are
put out of the way: q is its input, k and v are turned as it turns q. It knows no masks, and whole grids only.
Options as `axial`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import Identity

from attention_impls.call import Call
from attention_impls.contract import Implementation, Run, Support
from attention_impls.needs import package
from attention_impls.peers import first_of, imported, no_empty_batch, only_default_scale, out_only
from attention_impls.variants.sparse import axial

LIBRARY = "axial_attention"


class _Pair:
    """What the library splits into keys and values."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self._pair = k, v

    def chunk(self, count: int, dim: int) -> tuple[Tensor, Tensor]:
        """Keys and values, whatever is said."""
        return self._pair


def _turned(x: Tensor, permutation: list[int]) -> Tensor:
    """A grid [B, height, width, H·D] as the library lays it out along one axis: [lines, tokens, H·D]."""
    line = x.permute(*permutation)
    return line.reshape(-1, *line.shape[-2:])


def _axial(width: int, call: Call, lse: bool) -> Run:
    heads, size = call.q.shape[1], call.q.shape[3]
    attend = imported(LIBRARY).AxialAttention(dim=heads * size, num_dimensions=2, heads=heads, sum_axial_out=True)
    for axis in attend.axial_attentions:
        axis.fn.to_q = axis.fn.to_out = Identity()
        del axis.fn.to_kv

    def gridded(x: Tensor) -> Tensor:
        grid: Tensor = x.transpose(1, 2).flatten(2).unflatten(1, (-1, width))
        return grid

    def run(call: Call) -> Tensor:
        q, k, v = (gridded(x) for x in (call.q, call.k, call.v))
        for axis in attend.axial_attentions:
            axis.fn.to_kv = _kept(_Pair(_turned(k, axis.permutation), _turned(v, axis.permutation)))
        out: Tensor = attend(q).flatten(1, 2).unflatten(-1, (heads, -1))
        return out.transpose(1, 2)

    return out_only(run)


def _kept(pair: _Pair) -> Any:
    return lambda tokens: pair


def _whole_grid(width: int, call: Call) -> str | None:
    tokens = call.q.shape[2]
    return f"needs whole rows of {width} tokens; got {tokens}" if tokens % width else None


def implementations(width: int = 32) -> list[Implementation]:
    """The one kernel, on a grid `width` columns wide. Raises ValueError for a width below 1."""
    variant = axial.implementations(width)[0].variant
    support = Support(
        masks=frozenset({"full"}),
        grouped_heads=False,
        cross=False,
        value_dim=False,
        needs=(package(LIBRARY, "axial-attention"),),
        why_not=first_of(only_default_scale, partial(_whole_grid, width), no_empty_batch),
    )
    return [Implementation(LIBRARY, variant, partial(_axial, width), support)]
