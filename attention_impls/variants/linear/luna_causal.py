"""Causal Luna: running sums in place of Luna's two softmaxes over keys, so that no later token is read.

φ_j = softplus(scale · p k_j) [P] packs, p [G, P, D] learned; u_i = softmax over P of (1/n_i) Σ_visible scale ·
(q_i·k_j) φ_j unpacks; out_i = (1/n_i) Σ_visible (u_i·φ_j) v_j, n_i how many keys query i sees (the paper's t). So
A_ij = u_i·φ_j / n_i: rows do not sum to 1, and a query without keys gives zeros. Linear because Σ k_j φ_jᵀ [D, P]
and Σ φ_j v_jᵀ [P, E] are running sums. A function of its own, not `luna` under a mask; it is defined for any mask.

Source: Ma et al. 2021, "Luna: Linear Unified Nested Attention", arXiv 2106.01540, the causal form with ω =
softplus; scaling q·k too follows the usual attention. Option: packed, the size P.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from attention_impls.call import Call, repeat_heads
from attention_impls.contract import Growth, Implementation, Output, Parameter, Run, Support, Variant
from attention_impls.delta_rule import Layout
from attention_impls.tiling import checked, spans

CHUNK = 64


def _weights(call: Call, rows: Tensor) -> Tensor:
    packs = softplus(call.k @ call.parameters["p"].mT * call.scale)  # [B, H, J, P]
    visible = call.mask.visible(rows)
    everything = torch.ones((1, 1, 1, call.k.shape[2]), dtype=torch.bool, device=call.k.device)
    seen = (everything if visible is None else visible).to(call.k.dtype)
    counts = seen.sum(-1, keepdim=True).clamp(min=1)
    likeness = call.q[:, :, rows] @ call.k.mT * call.scale * seen
    unpacks = torch.softmax(likeness @ packs / counts, -1)
    return unpacks @ packs.mT * seen / counts


def _packs(call: Call) -> Tensor:
    """φ of all keys [B, G, J, P], in float32 at least."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    return softplus(call.k.to(wide) @ (call.parameters["p"].to(wide) * call.scale).mT)


def _quadratic(call: Call, lse: bool) -> Run:
    """Both matrices of pairs at once: any mask."""
    visible = call.mask.simplified().to(call.q.device).visible()
    counts: Tensor | int = call.k.shape[2]
    if visible is not None:
        counts = visible.sum(-1, keepdim=True).clamp(min=1)

    def shown(pairs: Tensor) -> Tensor:
        return pairs if visible is None else pairs.masked_fill(~visible, 0.0)

    def run(call: Call) -> Output:
        heads = call.q.shape[1]
        packs = repeat_heads(_packs(call), heads)
        q, k, v = (x.to(packs.dtype) for x in (call.q, repeat_heads(call.k, heads), repeat_heads(call.v, heads)))
        unpacks = torch.softmax(shown(q * call.scale @ k.mT) @ packs / counts, -1)
        return Output((shown(unpacks @ packs.mT) @ v / counts).to(call.q.dtype))

    return run


def _counts(call: Call) -> Tensor:
    """n [1|B, 1, 1, I, 1] of a causal call: keys up to each query's position, of those within its sequence."""
    mask = call.mask.to(call.q.device)
    positions = mask.q_positions(torch.arange(mask.q_len, device=call.q.device))
    ends = (positions - mask.k_start + 1).clamp(0, mask.kv_len).view(1, -1)
    if mask.key_lengths is not None:
        ends = torch.minimum(ends, (mask.key_lengths - mask.k_start).clamp(min=0).unsqueeze(-1))
    return ends.clamp(min=1)[:, None, None, :, None]


def _chunked(call: Call, layout: Layout, counts: Tensor, chunk: int) -> Tensor:
    packs = _packs(call)
    if layout.hidden is not None:
        packs = packs.masked_fill(layout.hidden.unsqueeze(-1), 0.0)  # in both sums
    q = call.q.to(packs.dtype).unflatten(1, (call.k.shape[1], -1)) * call.scale  # [B, G, H/G, I, D]
    keys = call.k.new_zeros((*call.k.shape[:2], 1, call.k.shape[3], packs.shape[3]), dtype=packs.dtype)
    values = call.k.new_zeros((*call.k.shape[:2], 1, packs.shape[3], call.v.shape[3]), dtype=packs.dtype)
    unread = min(max(-layout.offset, 0), layout.rows)
    outs = [q.new_zeros((*q.shape[:3], unread, call.v.shape[3]))]
    for lo, hi in spans(layout.keys, chunk):
        k, v = (x[:, :, None, lo:hi].to(packs.dtype) for x in (call.k, call.v))
        phi, (first, last) = packs[:, :, None, lo:hi], layout.read_at(lo, hi)
        at = (torch.arange(first, last, device=q.device) + layout.offset).unsqueeze(-1)
        later = torch.arange(lo, hi, device=q.device) > at  # [R, C]
        rows, n = q[:, :, :, first:last], counts[..., first:last, :]
        unpacks = torch.softmax((rows @ keys + (rows @ k.mT).masked_fill(later, 0.0) @ phi) / n, -1)
        outs.append((unpacks @ values + (unpacks @ phi.mT).masked_fill(later, 0.0) @ v) / n)
        keys, values = keys + k.mT @ phi, values + phi.mT @ v
    return torch.cat(outs, 3).flatten(1, 2).to(call.q.dtype)


_CAUSAL = Support(
    masks=frozenset({"causal", "key_lengths", "empty_rows"}),
    starts=frozenset({"zero", "aligned", "any"}),
    why_not=lambda call: None if call.mask.causal else "is the causal form; the quadratic one takes this mask",
)


def chunked(variant: Variant, chunk: int = CHUNK) -> Implementation:
    """Chunks of `chunk` keys against the sums before them; causal. Raises ValueError for a chunk below 1."""
    checked("chunk", chunk)

    def prepare(call: Call, lse: bool) -> Run:
        layout, counts = Layout.of(call), _counts(call)
        return lambda call: Output(_chunked(call, layout, counts, chunk))

    return Implementation(
        "chunked", variant, prepare, _CAUSAL, configure=partial(chunked, variant), growth=Growth(1, 1, "packed fixed")
    )


def implementations(packed: int = 64) -> list[Implementation]:
    """The two forms with `packed` learned queries. Raises ValueError for fewer than one."""
    variant = Variant(
        "luna_causal",
        weights=_weights,
        parameters={"p": Parameter("G P D", "weight", sizes={"P": checked("packed", packed)})},
        row_stochastic=False,
        paper="Ma et al. 2021, arXiv 2106.01540",
        formula="A_ij = u_i·φ_j / n_i, u_i = softmax((1/n_i) Σ scale · (q_i·k_j) φ_j), φ = softplus(scale · p k)",
        cost="time O(J·P·(D+E)) chunked, O(I·J·(D+P+E)) quadratic; memory P·(D+E) and one chunk, or O(I·J)",
    )
    return [Implementation("quadratic", variant, _quadratic), chunked(variant)]
