"""softmax.flex: PyTorch's FlexAttention, compiled in `prepare`, its mask the rule of the call's own mask.

Exact. The mask becomes a BlockMask (hidden blocks are skipped) and a function that the compiler inlines.
Compilation is part of `prepare`: the kernel is run once there on zeros of the same shapes. It never runs
uncompiled: the function that holds it raises when Python executes it, and only the compiler gets past
that line; a limit on recompilation raises as well. Each prepared call has a code object of its own, so
that compilations of other calls neither evict it nor count against it.

On the CPU the compiled kernel has no backward and no log-sum-exp, and float64 is not taken (torch 2.13).

Source: Dong et al. 2024, "Flex Attention: A Programming Model for Generating Optimized Attention
Kernels", arXiv 2412.05496; torch.nn.attention.flex_attention.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from attention_impls.call import Call
from attention_impls.contract import Implementation, Output, Run, Support
from attention_impls.mask import Mask
from attention_impls.needs import CPP_COMPILER
from attention_impls.variants.scores.softmax import SOFTMAX


def _fused(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask | None, scale: float) -> Tensor:
    if not torch.compiler.is_compiling():
        raise RuntimeError(
            "FlexAttention was about to run uncompiled, which materialises every score; "
            "is torch.compile switched off (TORCHDYNAMO_DISABLE, TORCH_COMPILE_DISABLE, set_stance)?"
        )
    grouped = q.shape[1] != k.shape[1]
    out: Tensor = flex_attention(q, k, v, block_mask=blocks, scale=scale, enable_gqa=grouped)
    return out


def _own_copy(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function with a code object of its own, which is what torch.compile's caches and limits hang on."""
    return types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__)


@contextmanager
def _compiling() -> Iterator[None]:
    """Lets the compiler use what torch itself deprecates; every other warning stays one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script_method.*", category=DeprecationWarning)
        yield


def _block_mask(mask: Mask, device: torch.device) -> BlockMask | None:
    if mask.full:
        return None
    batch, heads = mask.shape

    def allows(b: Tensor, h: Tensor, r: Tensor, c: Tensor) -> Tensor:  # a function: methods are not taken
        return mask.allows(b, h, r, c)

    return create_block_mask(
        allows,
        batch if batch > 1 else None,
        heads if heads > 1 else None,
        mask.q_len,
        mask.kv_len,
        device=device,
    )


def _zeros_like(t: Tensor) -> Tensor:
    """Zeros of the same shape, strides and need of a gradient: everything a compilation depends on."""
    zeros = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).zero_()
    return zeros.requires_grad_(t.requires_grad)


def _flex(call: Call, lse: bool) -> Run:
    blocks = _block_mask(call.mask.simplified().to(call.q.device), call.q.device)
    kernel = torch.compile(_own_copy(_fused), fullgraph=True, dynamic=False)
    inputs = [_zeros_like(t) for t in (call.q, call.k, call.v)]
    with _compiling():
        out = kernel(*inputs, blocks, call.scale)
        if out.requires_grad:
            torch.autograd.grad(out, inputs, torch.zeros_like(out))
    return lambda call: Output(kernel(call.q, call.k, call.v, blocks, call.scale))


def _why_not(call: Call) -> str | None:
    return None if call.q.shape[0] else "FlexAttention takes no empty batch"


SUPPORT = Support(dtypes=frozenset({"f32", "tf32", "f16", "bf16"}), needs=(CPP_COMPILER,), why_not=_why_not)


def _refuses(call: Call, direction: str) -> str | None:
    if direction != "fwd" and call.where == "cpu":
        return "has no backward on the CPU"
    return SUPPORT.refuses(call, direction)


IMPLEMENTATIONS = [Implementation("flex", SOFTMAX, _flex, SUPPORT, refusal=_refuses)]
