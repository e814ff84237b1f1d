"""Softmax kernels with one fault each, for proving that the conformance suite catches it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_rows
from attention_impls.contract import Implementation, Output, Parameter, Run, Support, Variant
from attention_impls.makers import softmax_of
from attention_impls.variants.scores.softmax import SOFTMAX

BIASED = softmax_of(
    "biased",
    lambda call, rows: call.q[:, :, rows] @ call.k.mT * call.scale + call.parameters["bias"],
    parameters={"bias": Parameter("J", "weight")},
)
BIAS_FORGOTTEN = replace(SOFTMAX, parameters=BIASED.parameters)


def logits(call: Call) -> Tensor:
    return hide(call.q @ repeat_heads(call.k, call.q.shape[1]).mT * call.scale, call.mask.visible())


def attend(call: Call, softmax: Callable[[Tensor], Tensor] = softmax_rows) -> Tensor:
    return softmax(logits(call)) @ repeat_heads(call.v, call.q.shape[1])


def with_lse(call: Call) -> Output:
    return Output(attend(call), lse_rows(logits(call)))


class Times(torch.autograd.Function):
    """The identity, whose gradient is multiplied by what `factor` says of it."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, factor: Callable[[Tensor], float]) -> Tensor:
        ctx.factor = factor
        return out.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor(grad), None


def scaled_wrongly(call: Call) -> Tensor:
    return attend(replace(call, scale=call.scale * 1.01))


def shifted_mask(call: Call) -> Tensor:
    return attend(replace(call, mask=replace(call.mask, q_start=call.mask.q_start + 1)))


def lost_tile(call: Call) -> Tensor:
    return attend(call.keys(0, call.k.shape[2] // 16 * 16))


def swapped_head(call: Call) -> Tensor:
    heads, groups = call.q.shape[1], call.k.shape[1]
    order = [h % groups for h in range(heads)]  # tiled where it should be interleaved
    return attend(replace(call, k=call.k[:, order], v=call.v[:, order]))


def tripled_gradient(call: Call) -> Tensor:
    return Times.apply(attend(call), lambda grad: 3.0)


def dropped_causal(call: Call) -> Tensor:
    return attend(replace(call, mask=replace(call.mask, causal=False)))


def dropped_padding(call: Call) -> Tensor:
    return attend(replace(call, mask=replace(call.mask, key_lengths=None)))


def ignored_scale(call: Call) -> Tensor:
    return attend(replace(call, scale=SOFTMAX.scale(call.q.shape[-1])))


def half_inside(call: Call) -> Tensor:
    return attend(call.map(torch.Tensor.bfloat16)).to(call.q.dtype)


def eight_bit_weights(call: Call) -> Tensor:
    return attend(call, lambda rows: softmax_rows(rows).to(torch.float8_e5m2).to(rows.dtype))


def other_dtype(call: Call) -> Tensor:
    return attend(call).float()


def written_in_place(call: Call) -> Tensor:
    call.q.mul_(call.scale)
    return attend(replace(call, scale=1.0))


def mixed_batch(call: Call) -> Tensor:
    return attend(replace(call, k=call.k.flip(0)))


def mixed_gradient(call: Call) -> Tensor:
    leak = call.v.flip(0).mean()
    return attend(call) + (leak - leak.detach())


def fresh_memory(call: Call) -> Tensor:
    scratch = torch.empty(call.q.shape[2], dtype=torch.float64).nan_to_num(nan=math.nan, posinf=0.0, neginf=0.0)
    return attend(call) + torch.where(scratch.isnan(), scratch, 0.0).to(call.q.dtype)[:, None]


def unguarded_softmax(call: Call) -> Tensor:
    return attend(call, lambda rows: torch.softmax(rows, -1))


def felt_padding(call: Call) -> Tensor:
    seen = call.mask.visible()
    rows = call.q @ repeat_heads(call.k, call.q.shape[1]).mT * call.scale
    rows = rows if seen is None else rows.masked_fill(~seen, -18.0)
    return torch.softmax(rows, -1) @ repeat_heads(call.v, call.q.shape[1])


def future_gradient(call: Call) -> Tensor:
    ahead = call.v.mean((1, 2), keepdim=True)
    return attend(call) + (ahead - ahead.detach())


def strides_ignored(call: Call) -> Tensor:
    q = torch.as_strided(call.q, call.q.shape, torch.empty(call.q.shape, device="meta").stride())
    return attend(replace(call, q=q))


def broadcast_doubled(call: Call) -> Tensor:
    return attend(call) * (1.0 if call.k.stride(0) else 2.0)


def broadcast_gradient_doubled(call: Call) -> Tensor:
    return Times.apply(attend(call), lambda grad: 1.0 if grad.stride(-1) else 2.0)


def empty_lse_is_zero(call: Call) -> Output:
    lse = lse_rows(logits(call))
    return Output(attend(call), lse.masked_fill(lse.isneginf(), 0.0))


def binary_lse(call: Call) -> Output:
    return Output(attend(call), lse_rows(logits(call)) / math.log(2.0))


def detached_lse(call: Call) -> Output:
    return Output(attend(call), lse_rows(logits(call)).detach())


def no_lse(call: Call) -> Tensor:
    return attend(call)


def forgotten_bias(call: Call) -> Tensor:
    return attend(call)


def stale(call: Call, lse: bool) -> Run:
    """Answers with what the values seen by prepare gave."""
    kept = attend(call)
    return lambda call: Output(kept)


def mutant(kernel: Callable[[Call], Any], variant: Variant = SOFTMAX, **support: Any) -> Implementation:
    def prepare(call: Call, lse: bool) -> Run:
        def run(call: Call) -> Output:
            out = kernel(call)
            return out if isinstance(out, Output) else Output(out)

        return run

    return Implementation(kernel.__name__, variant, prepare, Support(**support))
