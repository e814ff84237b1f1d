"""linformer 0.2.3 (P. Wang): its `LinformerSelfAttention`, with q, k and v handed in where it would project tokens.

After Wang et al. 2020, arXiv 2006.04768. Its own projections of tokens are put out of the way, its projections along
the sequence are the call's. It knows no masks. Options as `linformer`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import Identity

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Run, Support
from attention_impls.needs import package
from attention_impls.peers import (
    first_of,
    imported,
    no_empty_batch,
    only_default_scale,
    out_only,
    some_heads_shared,
)
from attention_impls.variants.linear import linformer

LIBRARY = "linformer"


def _flat(x: Tensor) -> Tensor:
    """[B, H, T, D] -> [B, T, H·D]."""
    return x.transpose(1, 2).flatten(2)


def _split(x: Tensor, heads: int) -> Tensor:
    """[B, T, H·D] -> [B, H, T, D]."""
    split: Tensor = x.unflatten(-1, (heads, -1))
    return split.transpose(1, 2)


def _module(rank: int, call: Call) -> Any:
    """The library's module without its projections of tokens, and without its own of the sequence."""
    heads, keys, size = call.q.shape[1], call.k.shape[2], call.q.shape[3]
    made = imported(LIBRARY).LinformerSelfAttention(heads * size, keys, k=rank, heads=heads, dim_head=size)
    made.to_q = made.to_k = made.to_out = Identity()
    del made.to_v, made.proj_k, made.proj_v
    return made


def _linformer(rank: int, call: Call, lse: bool) -> Run:
    attend, heads = _module(rank, call), call.q.shape[1]

    def run(call: Call) -> Tensor:
        values = _flat(call.v)
        attend.to_v = lambda tokens: values
        attend.proj_k, attend.proj_v = call.parameters["e"].mT, call.parameters["f"].mT
        out: Tensor = attend(_flat(call.q), context=_flat(call.k))
        return _split(out, heads)

    return out_only(run)


def implementations(rank: int = 64) -> list[Implementation]:
    """The one kernel, for one rank. Raises ValueError for a rank below 1."""
    variant = linformer.implementations(rank)[0].variant
    support = Support(
        masks=frozenset({"full"}),
        value_dim=False,
        needs=(package(LIBRARY, "linformer"),),
        why_not=first_of(only_default_scale, some_heads_shared, no_empty_batch),
    )
    return [Implementation(LIBRARY, variant, partial(_linformer, rank), support, growth=Growth(1, 1, "rank fixed"))]
