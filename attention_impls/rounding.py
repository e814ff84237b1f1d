"""q and k rounded to few bits, tokens sharing scales: what the mechanisms of lowprec/ are made of.

A `Format` has a grid of numbers up to `largest`; x under a scale s = max|x| / largest becomes s · nearest(x / s).
Blocks of `block` tokens of one head of one sequence share a scale, 1 is a scale for each token, 0 one for all of them.
smooth takes the mean over its keys off every key first: softmax does not feel it, for it moves all logits of a row
alike, while an offset that all keys have in common no longer widens the scale. Keys past their sequence's length are
zeros in every mean and scale. Means, scales and quotients are in float32 at least.

Gradients pass straight through the rounding: they are those of attention at the rounded q and k.
Sources: Zhang et al. 2024 (SageAttention), arXiv 2410.02367 (smoothing, granularities); Bengio et al. 2013,
arXiv 1308.3432 (the straight-through gradient).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_impls.call import Call, wide
from attention_impls.choosing import within_length
from attention_impls.contract import Variant
from attention_impls.makers import softmax_of
from attention_impls.tiling import spans

Nearest = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Format:
    """Numbers from −largest to largest; nearest(x) is the one nearest to each x of that range, ties to even."""

    largest: float
    nearest: Nearest


@dataclass(frozen=True)
class Sharing:
    """Who shares a scale (`block`), and whether keys lose their mean first. Raises ValueError for what is neither."""

    smooth: int
    block: int

    def __post_init__(self) -> None:
        if self.smooth not in (0, 1):
            raise ValueError(f"option smooth must be 1 (keys lose their mean) or 0; got {self.smooth}")
        if self.block < 0:
            raise ValueError(f"option block must be a number of tokens, or 0 for all of them; got {self.block}")

    @property
    def couples(self) -> frozenset[str]:
        """What a row depends on beyond its own query and the keys it sees."""
        if self.block != 1:
            return frozenset({"queries", "keys"})
        return frozenset({"keys"}) if self.smooth else frozenset()

    def why_not(self, call: Call) -> str | None:
        """A sentence where a mean or a scale would carry keys, or queries, to rows that must not feel them."""
        hiding = call.mask.simplified().kinds() - {"full", "key_lengths"}
        if not self.couples or not hiding:
            return None
        return (
            f"a mean or scale shared by tokens would let rows feel what a {', '.join(sorted(hiding))} mask hides from "
            "them; smooth-0 with block-1 shares none"
        )


@dataclass(frozen=True)
class Scaled:
    """Numbers of a format [B, H, N, D] and their scales [B, H, N, 1]."""

    numbers: Tensor
    scale: Tensor


def scaled(x: Tensor, form: Format, block: int) -> Scaled:
    """x [B, H, N, D] as numbers of a format; a block of zeros has the scale 1."""
    largest = x.detach().abs().amax(-1, keepdim=True)  # [B, H, N, 1]
    if block == 0:
        largest = largest.amax(2, keepdim=True).expand_as(largest)
    elif block > 1:
        whole = pad(largest, (0, 0, 0, -largest.shape[2] % block)).unflatten(2, (-1, block))
        largest = whole.amax(3).repeat_interleave(block, 2)[:, :, : x.shape[2]]
    scale = torch.where(largest > 0, largest / form.largest, torch.ones_like(largest))
    return Scaled(form.nearest(x.detach() / scale), scale)


def value(x: Tensor, form: Format, block: int) -> Tensor:
    """x rounded, with the gradient of x."""
    made = scaled(x, form, block)
    return straight_through(x, made.numbers * made.scale)


def straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """`rounded`, with the gradient of x."""
    return rounded + (x - x.detach()) if x.requires_grad else rounded


def keys_of(call: Call, sharing: Sharing) -> Tensor:
    """The keys as they are rounded, [B, H, J, D]: zeros past a sequence's length, less their mean where it is taken."""
    k, inside = wide(call.k), within_length(call.mask, call.k.device)
    if not sharing.couples:
        return k
    if inside is None:
        return k - k.mean(2, keepdim=True) if sharing.smooth else k
    k = k.masked_fill(~inside, 0.0)
    if not sharing.smooth:
        return k
    return (k - k.sum(2, keepdim=True) / inside.sum(2, keepdim=True).clamp(min=1)).masked_fill(~inside, 0.0)


def simulated(form: Format, sharing: Sharing) -> Callable[[Call], Tensor]:
    """The score scale · q̃ k̃ᵀ of rounded q̃ and k̃, the product one of floating-point numbers."""

    def score(part: Call) -> Tensor:
        q, k = value(wide(part.q), form, sharing.block), value(keys_of(part, sharing), form, sharing.block)
        scores: Tensor = q @ k.mT * part.scale
        return scores

    return score


def rounded_softmax(name: str, form: Format, sharing: Sharing, **facts: Any) -> Variant:
    """softmax(scale · q̃ k̃ᵀ) over visible keys, q̃ and k̃ worked out block after block in their plainest form."""

    def logits(call: Call, rows: Tensor) -> Tensor:
        q = rounded_plainly(wide(call.q), form, sharing.block)[:, :, rows]
        return q @ rounded_plainly(_plain_keys(call, sharing), form, sharing.block).mT * call.scale

    return softmax_of(
        name,
        logits,
        couples=sharing.couples,
        why_not=sharing.why_not,
        continuous=False,
        approximates="softmax",
        **facts,
    )


def rounded_plainly(x: Tensor, form: Format, block: int) -> Tensor:
    """`value` for definitions: block after block."""
    parts = [x[:, :, lo:hi] for lo, hi in spans(x.shape[2], block or x.shape[2])]
    return torch.cat([_as_one(part, form) for part in parts], 2) if parts else x


def _as_one(x: Tensor, form: Format) -> Tensor:
    """x [B, H, N, D] under one scale for each [B, H]."""
    largest = x.detach().abs().amax((2, 3), keepdim=True)
    scale = (largest / form.largest).masked_fill(largest == 0, 1.0)
    return straight_through(x, form.nearest(x.detach() / scale) * scale)


def _plain_keys(call: Call, sharing: Sharing) -> Tensor:
    """Sequence by sequence: its own keys less their mean, then zeros."""
    lengths = call.mask.key_lengths
    if not sharing.couples:
        return wide(call.k)
    found = []
    for b, k in enumerate(wide(call.k)):  # [H, J, D]
        last = k.shape[1] if lengths is None else int(lengths[b % len(lengths)]) - call.mask.k_start
        own = k[:, : max(0, last)]
        mean = own.mean(1, keepdim=True) if sharing.smooth and own.shape[1] else own.new_zeros(1)
        found.append(torch.cat([own - mean, torch.zeros_like(k[:, own.shape[1] :])], 1))
    return torch.stack(found) if found else wide(call.k)
