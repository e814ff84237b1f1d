"""Softmax attention, the base of everything here: A = softmax(scale · q kᵀ).

Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762. Queries that see no key give
zeros, LSE -inf and zero gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_for
from attention_impls.contract import Footprint, Growth, Implementation, Output, Prepare, Run, Support
from attention_impls.footprint import F32, KEPT_SCALAR, SCALAR, output, per_query, scores
from attention_impls.makers import softmax_of
from attention_impls.mask import Mask


def _logits(call: Call, rows: Tensor) -> Tensor:
    return call.q[:, :, rows] @ call.k.mT * call.scale


SOFTMAX = softmax_of(
    "softmax",
    _logits,
    paper="Vaswani et al. 2017, arXiv 1706.03762",
    formula="A = softmax(scale · q kᵀ), scale = D^-1/2",
    cost="time O(I·J·D); memory O(I·J) materialised, O(I) tiled",
)


def _naive(call: Call, lse: bool) -> Run:
    """Two matrix products with the whole [B, H, I, J] between them: what the mechanism says, read aloud."""
    mask = call.mask.simplified().to(call.q.device)
    visible, softmax, heads = mask.visible(), softmax_for(mask), call.q.shape[1]

    def logits(call: Call) -> Tensor:
        return hide(call.q @ repeat_heads(call.k, heads).mT * call.scale, visible)

    def run(call: Call) -> Output:
        return Output(softmax(logits(call)) @ repeat_heads(call.v, heads))

    def run_with_lse(call: Call) -> Output:
        kept = logits(call)
        return Output(softmax(kept) @ repeat_heads(call.v, heads), lse_rows(kept))

    return run_with_lse if lse else run


def _corner(mask: Mask) -> bool:
    """True where torch's `is_causal` (top-left corner) says exactly what the mask says."""
    return mask.kinds() == {"causal"} and mask.start() == "zero"


def _bias(mask: Mask, dtype: torch.dtype) -> Tensor | None:
    """The mask as an added bias of 0 and -inf in q's dtype, which the fused kernels take."""
    visible = mask.visible()
    if visible is None:
        return None
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def fused_on_cpu(bias: Tensor | None, causal: bool, lse: bool) -> Run:
    """torch's fused CPU kernel by its operator, not through F.scaled_dot_product_attention; needs E = D.

    bias [1|B, 1|H, I, J] in q's dtype, -inf where hidden; causal is the top-left corner. Choosing the
    back-end there takes a context manager of about 13 µs a call, and its LSE is not returned. The
    kernel gives lse 0, not -inf, for a query without keys: put right when it is asked for.
    """
    empty = None if bias is None else torch.isneginf(bias).all(-1)  # [1|B, 1|H, I]
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def run(call: Call) -> Output:
        out, total = kernel(call.q, call.k, call.v, 0.0, causal, attn_mask=bias, scale=call.scale)
        if not lse:
            return Output(out)
        return Output(out, total if empty is None else total.masked_fill(empty, float("-inf")))

    return run


def spread_columns(call: Call) -> str | None:
    """Why the fused CPU kernel cannot take a call: it reads columns side by side whatever the last stride says."""
    spread = any(t.shape[-1] > 1 and t.stride(-1) != 1 for t in (call.q, call.k, call.v))
    return "would misread inputs whose last axis is not contiguous" if spread else None


def fused_pinned(backend: SDPBackend, bias: Tensor | None, causal: bool, grouped: bool) -> Run:
    """A back-end through the public function, nothing else allowed: it raises rather than fall back."""

    def run(call: Call) -> Output:
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(
                call.q, call.k, call.v, bias, 0.0, causal, scale=call.scale, enable_gqa=grouped
            )
        return Output(out)

    return run


def _flash_cpu(call: Call, lse: bool) -> Run:
    mask = call.mask.simplified().to(call.q.device)
    causal = _corner(mask)
    return fused_on_cpu(None if causal else _bias(mask, call.q.dtype), causal, lse)


def _math(call: Call, lse: bool) -> Run:
    """torch's unfused composite, the back-end that every device has."""
    mask = call.mask.simplified().to(call.q.device)
    causal = _corner(mask)
    bias = None if causal else _bias(mask, call.q.dtype)  # a bool mask would be added as 0 and 1 here
    grouped = call.group > 1
    kernel = torch.ops.aten._scaled_dot_product_attention_math

    def run(call: Call) -> Output:
        return Output(kernel(call.q, call.k, call.v, bias, 0.0, causal, scale=call.scale, enable_gqa=grouped)[0])

    return run


def _pinned(backend: SDPBackend) -> Prepare:
    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        causal = _corner(mask)
        return fused_pinned(backend, None if causal else _bias(mask, call.q.dtype), causal, call.group > 1)

    return prepare


def _flash(call: Call, lse: bool) -> Run:
    if call.q.device.type == "cpu":
        return _flash_cpu(call, lse)
    return _flash_with_lse(call) if lse else _pinned(SDPBackend.FLASH_ATTENTION)(call, lse)


def _flash_with_lse(call: Call) -> Run:
    """The CUDA kernel by its operator, whose LSE the public function drops. Its rows are padded to whole tiles."""
    causal, rows = _corner(call.mask.simplified()), call.q.shape[2]
    kernel = torch.ops.aten._scaled_dot_product_flash_attention

    def run(call: Call) -> Output:
        k, v = (repeat_heads(t, call.q.shape[1]) for t in (call.k, call.v))
        out, total = kernel(call.q, k, v, 0.0, causal, False, scale=call.scale)[:2]
        return Output(out, total[:, :, :rows])

    return run


def _flash_why_not(call: Call) -> str | None:
    """The CUDA flash kernel takes no mask tensor and half precision only; the CPU's one no spread columns."""
    if call.where != "cuda":
        return spread_columns(call)
    if not call.mask.simplified().full and not _corner(call.mask.simplified()):
        return "on CUDA the flash back-end takes no mask but the top-left causal one"
    if call.q.dtype not in (torch.float16, torch.bfloat16):
        return "on CUDA the flash back-end takes f16 and bf16 only"
    return None


# Scaled scores and weights at once, and three scalars; or weights and output. With the log-sum-exp, scores are there
# to its end, beside a copy without empty rows and the exponentials of it, and two numbers and a flag a query.
NAIVE = Footprint(
    peak=lambda w: max(2 * scores(w), scores(w) + output(w)) + 3 * SCALAR,
    held=lambda w: scores(w) + output(w) + KEPT_SCALAR,
    peak_lse=lambda w: 3 * scores(w) + output(w) + 2 * per_query(w) + per_query(w) // F32,
)
FLASH = Footprint(held=lambda w: output(w) + per_query(w))  # its scratch grows by steps
_CUDA = frozenset({"cuda"})
_HALF = frozenset({"f16", "bf16"})

IMPLEMENTATIONS = [
    Implementation("naive", SOFTMAX, _naive, Support(lse="differentiable"), footprint=NAIVE),
    Implementation("sdpa_math", SOFTMAX, _math),
    Implementation(
        "sdpa_flash",
        SOFTMAX,
        _flash,
        Support(value_dim=False, lse="value", why_not=_flash_why_not),
        backend={"cpu": "_scaled_dot_product_flash_attention_for_cpu", "cuda": "_flash_attention_forward"},
        growth=Growth(bytes=1),
        footprint=FLASH,
    ),
    Implementation(
        "sdpa_efficient",
        SOFTMAX,
        _pinned(SDPBackend.EFFICIENT_ATTENTION),
        Support(devices=_CUDA, grouped_heads=False, dtypes=_HALF | {"f32", "tf32"}),
        backend={"cuda": "_efficient_attention_forward"},
        growth=Growth(bytes=1),
    ),
    Implementation(
        "sdpa_cudnn",
        SOFTMAX,
        _pinned(SDPBackend.CUDNN_ATTENTION),
        Support(devices=_CUDA, dtypes=_HALF),
        backend={"cuda": "_cudnn_attention_forward"},
        growth=Growth(bytes=1),
    ),
]
