"""Scalable softmax: A = softmax(s_h · log n_i · scale · q_i kᵀ), n_i how many keys query i sees; s [H] learned.

Rows keep their sharpness as contexts grow: the largest of n weights stays in charge where its logit leads by more
than 1/s. Under a causal mask n_i grows along the sequence, as in the source: Nakanishi 2025, "Scalable-Softmax Is
Superior for Attention", arXiv 2501.19399 (without its optional bias); s is drawn around 0.43. A row
depends on how many keys there are: parts of the keys cannot be joined. Where s·log n is 1 it is `softmax`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call, wide
from attention_impls.contract import Implementation, Output, Parameter, Run
from attention_impls.makers import softmax_of
from attention_impls.mask import Mask
from attention_impls.through import softmax_kernel
from attention_impls.variants.exact.tiles import tiles


def _log_counts(mask: Mask, rows: Tensor) -> Tensor:
    """log n_i [1|B, 1|H, R, 1] in float64; 0 for a query that sees no key."""
    visible = mask.visible(rows)
    if visible is None:
        return torch.full((1, 1, len(rows), 1), float(mask.kv_len), dtype=torch.float64, device=rows.device).log()
    return visible.sum(-1, keepdim=True).clamp(min=1).double().log()


def _logits(call: Call, rows: Tensor) -> Tensor:
    logits = call.q[:, :, rows] @ call.k.mT * call.scale
    sharpness = call.parameters["s"][:, None, None] * _log_counts(call.mask, rows).to(call.q.dtype)
    return logits * sharpness


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return 0.43 * (0.3 * torch.randn(shape, generator=generator)).exp()


SSMAX = softmax_of(
    "ssmax",
    _logits,
    parameters={"s": Parameter("H", "weight", draw=_draw)},
    join="none",
    paper="Nakanishi 2025, arXiv 2501.19399",
    formula="A_i = softmax(s_h · log n_i · scale · q_i kᵀ), n_i visible keys, scale = D^-1/2",
    cost="as softmax",
)


def _sharpened(inner: Implementation) -> Implementation:
    """A softmax kernel given queries multiplied by s·log n, whose logarithms are taken once."""

    def with_queries(call: Call, logs: Tensor) -> Call:
        q = wide(call.q) * (wide(call.parameters["s"])[:, None, None] * logs)
        return replace(call, q=q.to(call.q.dtype), parameters={}, axes={})

    def prepare(call: Call, lse: bool) -> Run:
        rows = torch.arange(call.q.shape[2], device=call.q.device)
        logs = _log_counts(call.mask.to(call.q.device), rows).to(torch.promote_types(call.q.dtype, torch.float32))
        run = inner.prepare(with_queries(call, logs), lse)

        def sharpened(call: Call) -> Output:
            return run(with_queries(call, logs))

        return sharpened

    return replace(inner, variant=SSMAX, prepare=prepare, configure=None)


def tiled(block: int = 128) -> Implementation:
    """Softmax's tiles of `block` queries × `block` keys, the queries sharpened."""
    return replace(_sharpened(tiles(block)), configure=tiled)


IMPLEMENTATIONS = [_sharpened(softmax_kernel("naive")), _sharpened(softmax_kernel("sdpa_flash")), tiled()]
