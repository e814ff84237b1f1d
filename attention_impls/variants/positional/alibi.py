"""ALiBi: softmax attention whose logits fall linearly with distance, at a slope of its own in every head.

A = softmax(scale · q kᵀ − m_h |i − j|) over visible keys; i, j absolute positions, m [H].
Source: Press, Smith, Lewis 2021, "Train Short, Test Long", arXiv 2108.12409. The paper is causal, where
|i − j| is i − j; without a causal mask this is the symmetric form that bidirectional users take. Forms
that add +m_h·j instead (Bloom, MPT) differ by a constant per row: the same under a causal softmax only.
With slopes 0 it is `softmax`. Slopes follow the paper's rule also where H is no power of two.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_for
from attention_impls.contract import Implementation, Output, Parameter, Run, Support
from attention_impls.makers import softmax_of
from attention_impls.variants.scores.softmax import fused_on_cpu, fused_pinned, spread_columns


def slopes(heads: int) -> Tensor:
    """m [H]: 2^(-8h/H), h = 1 … H, where H is a power of two; else those of the power of two below, then
    every other one of the power of two above (Press et al. 2021, section 3 and their published code)."""
    power = 2 ** (heads.bit_length() - 1)
    own = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4.0 * h / power) for h in range(1, 2 * power + 1, 2)]
    return torch.tensor(own + between[: heads - power])


def _bias(call: Call, rows: Tensor) -> Tensor:
    """−m_h |i − j| [1|B, H, R, J], in float32 at least: half precision cannot count distances beyond 2048."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    at = call.mask.q_positions(rows)
    at = at.view(-1, 1, len(rows), 1)
    keys = call.mask.k_start + torch.arange(call.k.shape[2], device=rows.device)
    slope = call.parameters["slopes"].to(wide).view(1, -1, 1, 1)
    return -slope * (at - keys).abs()


def _logits(call: Call, rows: Tensor) -> Tensor:
    return call.q[:, :, rows] @ call.k.mT * call.scale + _bias(call, rows)


ALIBI = softmax_of(
    "alibi",
    _logits,
    parameters={"slopes": Parameter("H", "constant", draw=lambda _, shape: slopes(shape[0]), dtype="float32")},
    paper="Press, Smith, Lewis 2021, arXiv 2108.12409",
    formula="A = softmax(scale · q kᵀ − m_h |i − j|), m_h = 2^(-8h/H)",
    cost="time O(I·J·D); memory O(H·I·J) materialised, and O(H·I·J) of bias where a kernel takes it as a tensor",
)


def _whole_bias(call: Call) -> Tensor:
    """The bias of every row with −inf where the mask hides: [1|B, H, I, J], made once in prepare."""
    mask = call.mask.to(call.q.device)
    bias = _bias(call, torch.arange(call.q.shape[2], device=call.q.device))
    return hide(bias, mask.simplified().visible())


def _naive(call: Call, lse: bool) -> Run:
    """The logits and the bias materialised; for half precision in float32, as a far key's bias is large."""
    bias, softmax, heads = _whole_bias(call), softmax_for(call.mask), call.q.shape[1]

    def run(call: Call) -> Output:
        logits = torch.add(bias, call.q @ repeat_heads(call.k, heads).mT, alpha=call.scale)
        out = softmax(logits).to(call.q.dtype) @ repeat_heads(call.v, heads)
        return Output(out, lse_rows(logits) if lse else None)

    return run


def _flash(call: Call, lse: bool) -> Run:
    """torch's fused CPU kernel told the bias as its mask tensor."""
    return fused_on_cpu(_whole_bias(call), False, lse)


def _efficient(call: Call, lse: bool) -> Run:
    """torch's memory-efficient CUDA kernel, the fused one there that takes a bias."""
    return fused_pinned(SDPBackend.EFFICIENT_ATTENTION, _whole_bias(call).to(call.q.dtype), False, False)


IMPLEMENTATIONS = [
    Implementation("naive", ALIBI, _naive, Support(lse="differentiable")),
    Implementation(
        "sdpa_flash",
        ALIBI,
        _flash,
        Support(devices=frozenset({"cpu"}), value_dim=False, lse="value", why_not=spread_columns),
        backend={"cpu": "_scaled_dot_product_flash_attention_for_cpu"},
    ),
    Implementation(
        "sdpa_efficient",
        ALIBI,
        _efficient,
        Support(devices=frozenset({"cuda"}), grouped_heads=False, dtypes=frozenset({"f16", "bf16", "f32", "tf32"})),
        backend={"cuda": "_efficient_attention_forward"},
    ),
]
