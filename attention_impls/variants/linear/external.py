"""External attention: queries read a learned memory in place of the keys and values of the sequence.

W = softmax over the queries of q M_kᵀ [I, S], each row then divided by its sum; out = W M_v, M_k [S, D] and M_v [S,
E] learned and shared by all heads and sequences. Keys and values of the call are not read, so there is no A over
keys: `output` is defined instead. The double normalisation couples queries: a later one moves earlier rows. Full
mask only; the scale (1) multiplies the products.

Source: Guo et al. 2021, "Beyond Self-attention: External Attention using Two Linear Layers for Visual Tasks", arXiv
2105.02358; its code adds 1e-9 to a row's sum, here nothing is added. Option: units, the size S.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Output, Parameter, Run, Variant
from attention_impls.makers import of_call
from attention_impls.tiling import checked, spans
from attention_impls.undefined import one


def _output(call: Call, rows: Tensor) -> Tensor:
    shares = torch.softmax(call.q @ call.parameters["m_k"].mT * call.scale, 2)[:, :, rows]
    return shares / shares.sum(-1, keepdim=True) @ call.parameters["m_v"]


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal over √D: products with queries of unit variance."""
    return torch.randn(shape, generator=generator) / math.sqrt(shape[1])


def implementations(units: int = 64) -> list[Implementation]:
    """The two forms with `units` places of memory. Raises ValueError for fewer than one."""
    size = {"S": checked("units", units)}
    variant = Variant(
        "external",
        output=_output,
        parameters={
            "m_k": Parameter("S D", "weight", draw=_draw, sizes=size),
            "m_v": Parameter("S E", "weight", sizes=size),
        },
        couples=frozenset({"queries"}),
        masks=frozenset({"full"}),
        row_stochastic=False,
        scale=one,
        paper="Guo et al. 2021, arXiv 2105.02358",
        formula="out = norm(softmax_I(q M_kᵀ)) M_v, norm dividing rows by their sums",
        cost="time O(I·S·(D+E)); memory O(I·S) naive, O(block·S) streamed",
    )
    return [of_call(variant, _naive, growth=Growth(1, 1, "units fixed")), streamed(variant)]


def _wide(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    m_k, m_v = call.parameters["m_k"].to(dtype), call.parameters["m_v"].to(dtype)
    return call.q.to(dtype), m_k * call.scale, m_v


def _naive(call: Call) -> Tensor:
    """All products [B, H, I, S], divided by both sums."""
    q, m_k, m_v = _wide(call)
    powers = torch.softmax(q @ m_k.mT, 2)
    return (powers @ m_v / powers.sum(-1, keepdim=True)).to(call.q.dtype)


def streamed(variant: Variant, block: int = 256) -> Implementation:
    """Two passes over blocks of `block` queries: each unit's log-sum over queries, then rows. A row is a softmax
    over units of its products minus those sums."""
    checked("block", block)

    def configure(block: int = 256) -> Implementation:
        return streamed(variant, block)

    def prepare(call: Call, lse: bool) -> Run:
        plan = spans(call.q.shape[2], block)

        def run(call: Call) -> Output:
            q, m_k, m_v = _wide(call)
            sums = [torch.logsumexp(q[:, :, lo:hi] @ m_k.mT, 2, keepdim=True) for lo, hi in plan]
            total = torch.logsumexp(torch.cat(sums, 2), 2, keepdim=True)  # [B, H, 1, S]
            parts = [torch.softmax(q[:, :, lo:hi] @ m_k.mT - total, -1) @ m_v for lo, hi in plan]
            return Output(torch.cat(parts, 2).to(call.q.dtype))

        return run

    return Implementation("streamed", variant, prepare, configure=configure, growth=Growth(1, 1, "units fixed"))
