"""Shaw's relative positions: keys and values get a learned vector of their clipped distance to the query.

A = softmax(scale · q_i·(k_j + a^K_{c(j−i)})),  out_i = Σ_j A_ij (v_j + a^V_{c(j−i)}),  c(x) = clip(x, −K, K) + K.
rel_keys [2K+1, D] and rel_values [2K+1, E] are shared by all heads, as published. Option clip: K. With vectors of
zeros it is `softmax`; with one vector for all distances the keys' part changes no row.
`naive` forms k_j + a for every pair, O(I·J·D) memory. `gather` uses that there are 2K+1 vectors only: q·a^K is
[I, 2K+1], picked by distance, and weights of equal distance are summed before they meet a^V. `blocks` is the same for
a block of queries at a time, computed again in the backward.
Source: Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", arXiv 1803.02155.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from attention_impls.biased import Seen, blocks, distances, row_distances, whole
from attention_impls.call import Call, hide, lse_rows
from attention_impls.contract import Implementation, Output, Parameter, Variant
from attention_impls.makers import softmax_of
from attention_impls.tiling import checked


def _clipped(far: Tensor, clip: int) -> Tensor:
    """c(j − i) of distances i − j [1|B, 1, R, J]: rows of the tables, without the axis of heads."""
    return (-far[:, 0]).clamp(-clip, clip) + clip


def _logits(clip: int, call: Call, rows: Tensor) -> Tensor:
    """One relative vector at a time."""
    index = _clipped(row_distances(call, rows), clip)
    q, table = call.q[:, :, rows], call.parameters["rel_keys"]
    logits = q @ call.k.mT
    for at in range(2 * clip + 1):
        logits = logits + (q @ table[at])[..., None] * (index == at)[:, None]
    return logits * call.scale


def _finish(clip: int, bare: Variant, out: Tensor, call: Call, rows: Tensor) -> Tensor:
    """A v, and A's mass at every distance times that distance's vector."""
    assert bare.weights is not None  # softmax_of gave them
    weights, index = bare.weights(call, rows), _clipped(row_distances(call, rows), clip)
    for at in range(2 * clip + 1):
        mass = (weights * (index == at)[:, None]).sum(-1, keepdim=True)
        out = out + mass * call.parameters["rel_values"][at]
    return out


def implementations(clip: int = 16) -> list[Implementation]:
    """Shaw's attention with distances clipped to ±`clip`. Raises ValueError for a clip below 1."""
    size = {"R": 2 * checked("clip", clip) + 1}
    logits = partial(_logits, clip)
    variant = softmax_of(
        "shaw",
        logits,
        finish=partial(_finish, clip, softmax_of("shaw", logits)),
        parameters={
            "rel_keys": Parameter("R D", "weight", sizes=size),
            "rel_values": Parameter("R E", "weight", sizes=size),
        },
        paper="Shaw, Uszkoreit, Vaswani 2018, arXiv 1803.02155",
        formula="A = softmax(scale · q_i·(k_j + a^K_{clip(j−i)})); out = Σ_j A_ij (v_j + a^V_{clip(j−i)})",
        cost="time O(I·J·D); memory O(I·J·(D+E)) naive, O(I·(J+K)) gather, O(block·(J+K) + I·E) blocks",
    )
    return [
        whole(variant, "naive", partial(_all_pairs, clip)),
        whole(variant, "gather", partial(_by_distance, clip)),
        blocks(variant, partial(_by_distance, clip)),
    ]


def _all_pairs(clip: int, call: Call, seen: Seen, lse: bool) -> Output:
    index = _clipped(distances(call), clip)
    keys = call.k[:, :, None] + call.parameters["rel_keys"][index][:, None]  # [B, H, R, J, D]
    values = call.v[:, :, None] + call.parameters["rel_values"][index][:, None]  # [B, H, R, J, E]
    logits = hide((keys @ call.q[..., None]).squeeze(-1) * call.scale, seen.visible)
    out = (seen.softmax(logits)[..., None, :] @ values).squeeze(-2)
    return Output(out, lse_rows(logits) if lse else None)


def _by_distance(clip: int, call: Call, seen: Seen, lse: bool) -> Output:
    q, values = call.q * call.scale, call.parameters["rel_values"]
    index = _clipped(distances(call), clip)[:, None].expand(*q.shape[:3], call.k.shape[2])
    logits = hide(q @ call.k.mT + (q @ call.parameters["rel_keys"].mT).gather(-1, index), seen.visible)
    weights = seen.softmax(logits)
    mass = weights.new_zeros(*q.shape[:3], len(values)).scatter_add(-1, index, weights)
    return Output(weights @ call.v + mass @ values, lse_rows(logits) if lse else None)
