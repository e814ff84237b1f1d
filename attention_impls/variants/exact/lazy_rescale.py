"""softmax.lazy_rescale: the online form that leaves its sums alone until the maximum has grown by `threshold`.

Exact. The anchor that scores are measured from need not be the maximum: out = values / total and
lse = anchor + ln total hold for any. It is raised, and the sums rescaled, only when a score stands more than
`threshold` powers of two above it, so weights reach 2^threshold at most; float32 sums lose nothing by that.
A block that raises no row's anchor by so much rescales nothing. With threshold 0 it is the online form.
That no row rises is asked of the values in every block, which makes a GPU wait for the CPU: refused there.

Source: Zadouri, Hoehnerbach, Shah, Liu, Thakkar & Dao 2026, "FlashAttention-4: Algorithm and Kernel Pipelining
Co-Design for Asymmetric Hardware Scaling" (conditional rescaling; its threshold is 8, a factor of 256).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.call import Call, wide
from attention_impls.contract import POLICY, Growth, Implementation, Run, Support
from attention_impls.running import Sums, answer, finite, fold, folded_scores, nothing, output
from attention_impls.tiling import Tile, bands, checked
from attention_impls.variants.scores.softmax import SOFTMAX


def lazy_rescale(block: int = 64, threshold: float = 8.0) -> Implementation:
    """softmax over blocks of `block` keys; `threshold` in powers of two. Raises ValueError outside 0 … 64."""
    checked("block", block)
    if not 0.0 <= threshold <= 64.0:
        raise ValueError(f"option threshold must lie between 0 and 64 (powers of two); got {threshold}")

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        (rows,) = bands(mask, mask.q_len, block)
        return lambda call: output(answer(_over(call, rows.tiles, threshold * math.log(2.0)), call), lse)

    support = Support(lse="differentiable", why_not=_why_not)
    return Implementation("lazy_rescale", SOFTMAX, prepare, support, configure=lazy_rescale, growth=Growth(bytes=1))


def _over(call: Call, tiles: tuple[Tile, ...], slack: float) -> Sums:
    heads = call.q.shape[1]
    queries = fold(call.q, call.k.shape[1]) * call.scale
    sums = nothing(queries, call.v.shape[3])
    for tile in tiles:
        scores = folded_scores(queries, call.k[:, :, tile.lo : tile.hi], tile.visible, heads)
        sums = _raised(sums, scores.detach().amax(-1, keepdim=True), slack)
        weights = (scores - finite(sums.anchor)).exp()
        values = sums.values + weights @ wide(call.v[:, :, tile.lo : tile.hi])
        sums = Sums(values, sums.total + weights.sum(-1, keepdim=True), sums.anchor)
    return sums


def _raised(sums: Sums, top: Tensor, slack: float) -> Sums:
    """The same sums measured from the new maximum where it stands more than `slack` above the anchor."""
    rises = top > sums.anchor + slack
    if not bool(rises.any()):
        return sums
    anchor = torch.where(rises, top, sums.anchor)
    shrink = (sums.anchor - finite(anchor)).exp()
    return Sums(sums.values * shrink, sums.total * shrink, anchor)


def _why_not(call: Call) -> str | None:
    return None if call.where == "cpu" else f"{POLICY}it asks the values whether to rescale, and a GPU would wait"


IMPLEMENTATIONS = [lazy_rescale()]
