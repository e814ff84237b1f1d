"""Linear attention: A_ij = φ(q_i)·φ(k_j) / Σ_visible φ(q_i)·φ(k_j), φ(x) = elu(x) + 1 > 0.

A function of its own, not an approximation of softmax; it has no scale. Every similarity is positive, so
a row is also the softmax of log φ(q)·φ(k): its log-sum-exp is the logarithm of the denominator, and
results over disjoint keys join by it. A query that sees no key gives zeros and -inf. With one visible key
it is softmax attention: both give that key's value. The number of products falls from I·J·D to I·D·E
because the sums over keys, S = Σ φ(k) vᵀ [D, E] and z = Σ φ(k) [D], do not depend on the query.

Source: Katharopoulos et al. 2020, "Transformers are RNNs", arXiv 2006.16236.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_impls.call import Call, repeat_heads
from attention_impls.contract import Implementation, Output, Run, Support, Variant
from attention_impls.mask import Mask
from attention_impls.tiling import checked


def _phi(x: Tensor) -> Tensor:
    """elu(x) + 1 without the cancellation of that sum for large negative x: e^min(x, 0) + max(x, 0)."""
    return x.clamp(max=0.0).exp() + x.relu()


def _similar(call: Call, rows: Tensor) -> Tensor:
    s = _phi(call.q[:, :, rows]) @ _phi(call.k).mT
    visible = call.mask.visible(rows)
    return s if visible is None else s.masked_fill(~visible, 0.0)


def _weights(call: Call, rows: Tensor) -> Tensor:
    s = _similar(call, rows)
    return s / _guarded(s.sum(-1, keepdim=True))


def _lse(call: Call, rows: Tensor) -> Tensor:
    return _log(_similar(call, rows).sum(-1, keepdim=True))


def _guarded(total: Tensor) -> Tensor:
    """The denominator with 1 where a query sees no key."""
    return total.masked_fill(total == 0, 1.0)


def _log(total: Tensor) -> Tensor:
    """log of the denominator [..., 1] -> [...]; -inf with a gradient of zero where there is none."""
    return _guarded(total).log().masked_fill(total == 0, float("-inf")).squeeze(-1)


def _no_scale(call: Call) -> str | None:
    return None if call.scale == 1.0 else f"linear has no scale of logits; got {call.scale:.4g}, it must be 1"


def _one(head_dim: int) -> float:
    return 1.0


LINEAR = Variant(
    "linear",
    weights=_weights,
    lse=_lse,
    join="lse",
    scale=_one,
    why_not=_no_scale,
    paper="Katharopoulos et al. 2020, arXiv 2006.16236",
    formula="A = φ(q) φ(k)ᵀ over its row sums, φ = elu + 1",
    cost="time O(I·J·D) quadratic, O((I+J)·D·E) parallel and chunked; memory O(I·J), O(D·E) and O(I·E) held",
)


def _features(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """φ(q), φ(k) and v in float32 at least: the sums overflow half precision."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    return _phi(call.q.to(wide)), _phi(call.k.to(wide)), call.v.to(wide)


def _output(numerator: Tensor, total: Tensor, call: Call, lse: bool) -> Output:
    return Output((numerator / _guarded(total)).to(call.q.dtype), _log(total) if lse else None)


def _quadratic(call: Call, lse: bool) -> Run:
    """The whole [B, H, I, J] of similarities, as the definition says."""
    visible, heads = call.mask.simplified().to(call.q.device).visible(), call.q.shape[1]
    hidden = None if visible is None else ~visible

    def run(call: Call) -> Output:
        q, k, v = _features(call)
        s = q @ repeat_heads(k, heads).mT
        s = s if hidden is None else s.masked_fill(hidden, 0.0)
        return _output(s @ repeat_heads(v, heads), s.sum(-1, keepdim=True), call, lse)

    return run


def _keep(mask: Mask) -> Tensor | None:
    """[B, 1, J, 1]: True for the keys inside their sequence's length."""
    if mask.key_lengths is None:
        return None
    columns = mask.k_start + torch.arange(mask.kv_len, device=mask.key_lengths.device)
    return (columns < mask.key_lengths[:, None])[:, None, :, None]


def _kept(k: Tensor, keep: Tensor | None) -> Tensor:
    return k if keep is None else k.masked_fill(~keep, 0.0)


def _parallel(call: Call, lse: bool) -> Run:
    """One state for all queries: every query sees the same keys."""
    keep, heads = _keep(call.mask.simplified().to(call.q.device)), call.q.shape[1]

    def run(call: Call) -> Output:
        q, k, v = _features(call)
        k = _kept(k, keep)
        state, z = k.mT @ v, k.sum(2).unsqueeze(-1)  # [B, G, D, E], [B, G, D, 1]
        return _output(q @ repeat_heads(state, heads), q @ repeat_heads(z, heads), call, lse)

    return run


def chunked(block: int = 64) -> Implementation:
    """Queries in chunks of `block`: the keys before a chunk as one state, those beside it pair by pair."""
    checked("block", block)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        keep, plan = _keep(mask), _plan(mask, block)
        return lambda call: _walk(call, keep, plan, lse)

    return Implementation("chunked", LINEAR, prepare, _support("causal"), configure=chunked)


Chunk = tuple[slice, slice, slice, Tensor | None]
"""Query rows; key columns that enter the state before them; key columns beside them; hidden [R, C] or None."""


def _plan(mask: Mask, block: int) -> list[Chunk]:
    assert isinstance(mask.q_start, int)  # narrows the type: Support takes no start that differs by sequence
    offset = mask.q_start - mask.k_start if mask.causal else mask.kv_len
    rows, columns = (torch.arange(n, device=mask.device) for n in (mask.q_len, mask.kv_len))
    known, plan = 0, []
    for lo in range(0, mask.q_len, block):
        hi = min(lo + block, mask.q_len)
        seen, end = (min(max(row + offset, 0), mask.kv_len) for row in (lo, hi))
        hidden = columns[seen:end] > rows[lo:hi, None] + offset if end > seen else None
        plan.append((slice(lo, hi), slice(known, seen), slice(seen, end), hidden))
        known = seen
    return plan


def _walk(call: Call, keep: Tensor | None, plan: list[Chunk], lse: bool) -> Output:
    """The recurrence over chunks; the state is [B, G, D, E + 1], the last column being z."""
    q, k, v = _features(call)
    k, heads = _kept(k, keep), q.shape[1]
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    state, parts = k[:, :, :0].mT @ v[:, :, :0], []
    for rows, entering, beside, hidden in plan:
        if entering.stop > entering.start:
            state = state + k[:, :, entering].mT @ v[:, :, entering]
        part = q[:, :, rows] @ repeat_heads(state, heads)
        if hidden is not None:
            s = q[:, :, rows] @ repeat_heads(k[:, :, beside], heads).mT
            part = part + s.masked_fill(hidden, 0.0) @ repeat_heads(v[:, :, beside], heads)
        parts.append(part)
    both = torch.cat(parts, 2)
    return _output(both[..., :-1], both[..., -1:], call, lse)


def _support(*more: str) -> Support:
    masks = frozenset({"full", "key_lengths", "empty_rows", *more})
    return Support(masks=masks, starts=frozenset({"zero", "aligned", "any"}), lse="differentiable")


IMPLEMENTATIONS = [
    Implementation("quadratic", LINEAR, _quadratic, Support(lse="differentiable")),
    Implementation("parallel", LINEAR, _parallel, _support()),
    chunked(),
]
