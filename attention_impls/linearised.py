"""Attention whose weights are products of non-negative features, A_ij ∝ φ(q_i)·ψ(k_j), in its three forms.

quadratic: A materialised, any mask. parallel: (ψ(k)ᵀ v) first, for masks that hide the same keys from
every query. chunked: causal, a running state [F, E] and one triangle a chunk. `linearised` makes the three
implementations of a variant from its features; a query whose visible keys weigh nothing gives zeros. Where
the variant has a log-sum-exp, it is the logarithm of the row's sum of products, and differentiable.
Shared by the entrants of variants/linear; source of the forms: Katharopoulos et al. 2020, arXiv 2006.16236.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Lse, Output, Run, Support, Variant
from attention_impls.mask import Mask

Feature = Callable[[Tensor], Tensor]
"""[..., tokens, D] -> [..., tokens, F], in float32 at least; a row whose products sum to nothing gives zeros."""

Features = Callable[[Call], tuple[Feature, Feature]]
"""The maps (φ of queries, ψ of keys) for a call's parameters and scale; each may be given part of the tokens."""

CHUNK = 64


def linearised(variant: Variant, features: Features) -> list[Implementation]:
    """The three forms of a variant whose weights are φ(q_i)·ψ(k_j) over their sum."""
    same_keys = frozenset({"full", "key_lengths", "empty_rows"})
    return [
        Implementation("quadratic", variant, partial(_quadratic, features), Support(lse=_lse(variant))),
        Implementation(
            "parallel",
            variant,
            partial(_parallel, features),
            Support(masks=same_keys, lse=_lse(variant)),
            growth=Growth(1, 1, "features fixed"),
        ),
        _chunked_form(variant, features, CHUNK),
    ]


def _lse(variant: Variant) -> Lse:
    return "no" if variant.lse is None else "differentiable"


def log_weight(total: Tensor) -> Tensor:
    """Logarithm of a row's sum of products [..., 1] -> [...]; -inf with a gradient of zero where it is zero."""
    nothing = total == 0
    return total.masked_fill(nothing, 1.0).log().masked_fill(nothing, float("-inf")).squeeze(-1)


def normalised(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator [..., E] over denominator [..., 1]; zeros where the denominator is zero."""
    return numerator / denominator.masked_fill(denominator == 0, 1.0)


def _quadratic(features: Features, call: Call, lse: bool) -> Run:
    visible = call.mask.simplified().to(call.q.device).visible()

    def run(call: Call) -> Output:
        phi, psi = features(call)
        scores = (_folded(phi(call.q), call) @ psi(call.k).mT).unflatten(2, (call.group, -1)).flatten(1, 2)
        if visible is not None:
            scores = scores.masked_fill(~visible, 0.0)  # [B, H, I, J]
        out = _unfolded(_folded(scores, call) @ call.v.to(scores.dtype), call)
        return _answer(out, scores.sum(-1, keepdim=True), call, lse)

    return run


def _parallel(features: Features, call: Call, lse: bool) -> Run:
    valid = _valid(call.mask.simplified().to(call.q.device))

    def run(call: Call) -> Output:
        phi, psi = features(call)
        keys = _kept(psi(call.k), valid)
        queries = _folded(phi(call.q), call)
        state = keys.mT @ call.v.to(keys.dtype)  # [B, G, F, E]
        total = keys.sum(2, keepdim=True)  # [B, G, 1, F]
        weight = (queries * total).sum(-1, keepdim=True)  # no matrix product: autocast would round the LSE
        return _answer(_unfolded(queries @ state, call), _unfolded(weight, call), call, lse)

    return run


def _chunked_form(variant: Variant, features: Features, chunk: int) -> Implementation:
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1; got {chunk}")

    def configure(chunk: int = CHUNK) -> Implementation:
        return _chunked_form(variant, features, chunk)

    support = Support(
        masks=frozenset({"causal", "key_lengths", "empty_rows"}),
        starts=frozenset({"zero", "aligned", "any"}),
        lse=_lse(variant),
        why_not=lambda call: None if call.mask.causal else "is the causal form; the parallel one takes this mask",
    )
    return Implementation(
        "chunked",
        variant,
        partial(_chunked, features, chunk),
        support,
        configure=configure,
        growth=Growth(1, 1, "features fixed"),
    )


def _chunked(features: Features, chunk: int, call: Call, lse: bool) -> Run:
    mask = call.mask.to(call.q.device)
    valid = _valid(mask)
    assert not isinstance(mask.q_start, Tensor)  # narrows the type: Support names the starts
    offset, rows, keys = mask.q_start - mask.k_start, call.q.shape[2], call.k.shape[2]

    def upto(position: int) -> int:
        return min(max(position, 0), keys)

    def run(call: Call) -> Output:
        phi, psi = features(call)
        state, total, seen, outs, weights = None, None, 0, [], []
        for lo in range(0, rows, chunk):
            hi = min(lo + chunk, rows)
            first, last = upto(offset + lo), upto(offset + hi)
            state, total = _advanced(state, total, _block(call, psi, valid, seen, first))
            k, v = _block(call, psi, valid, first, last)
            queries = phi(call.q[:, :, lo:hi]).unflatten(1, (call.k.shape[1], -1))  # [B, G, H/G, C, F]
            at = torch.arange(lo, hi, device=k.device).unsqueeze(-1) + offset
            sees = torch.arange(first, last, device=k.device) <= at  # [C, keys of the chunk]
            scores = (queries @ k.unsqueeze(2).mT).masked_fill(~sees, 0.0)
            out = queries @ state.unsqueeze(2) + scores @ v.unsqueeze(2)
            weight = queries @ total.unsqueeze(2) + scores.sum(-1, keepdim=True)
            outs.append(normalised(out, weight).flatten(1, 2).to(call.q.dtype))
            weights.append(weight.flatten(1, 2))
            seen = first
        return Output(torch.cat(outs, 2), log_weight(torch.cat(weights, 2)) if lse else None)

    return run


def _block(call: Call, psi: Feature, valid: Tensor | None, lo: int, hi: int) -> tuple[Tensor, Tensor]:
    """Features and values of keys lo..hi, both in the features' dtype, hidden keys with features 0."""
    keys = _kept(psi(call.k[:, :, lo:hi]), None if valid is None else valid[:, :, lo:hi])
    return keys, call.v[:, :, lo:hi].to(keys.dtype)


def _advanced(state: Tensor | None, total: Tensor | None, block: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The running sums ψ(k)ᵀ v [B, G, F, E] and ψ(k)ᵀ 1 [B, G, F, 1] with one more block of keys in them."""
    keys, values = block
    more, weight = keys.mT @ values, keys.sum(2).unsqueeze(-1)
    return (more, weight) if state is None or total is None else (state + more, total + weight)


def _valid(mask: Mask) -> Tensor | None:
    """[B, 1, J, 1]: which keys lie within their sequence; None when all do."""
    if mask.key_lengths is None:
        return None
    at = mask.k_start + torch.arange(mask.kv_len, device=mask.key_lengths.device)
    return (at < mask.key_lengths.unsqueeze(-1))[:, None, :, None]


def _kept(keys: Tensor, valid: Tensor | None) -> Tensor:
    return keys if valid is None else keys.masked_fill(~valid, 0.0)


def _folded(x: Tensor, call: Call) -> Tensor:
    """[B, H, I, ...] -> [B, G, H/G · I, ...]: the query heads of a group side by side as rows."""
    folded: Tensor = x.unflatten(1, (call.k.shape[1], -1)).flatten(2, 3)
    return folded


def _unfolded(x: Tensor, call: Call) -> Tensor:
    unfolded: Tensor = x.unflatten(2, (call.group, -1)).flatten(1, 2)
    return unfolded


def _answer(out: Tensor, weight: Tensor, call: Call, lse: bool) -> Output:
    return Output(normalised(out, weight).to(call.q.dtype), log_weight(weight) if lse else None)
