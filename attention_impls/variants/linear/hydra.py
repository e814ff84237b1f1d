"""Hydra attention: as many heads as features, so that nothing is left of the pairs but a sum over keys.

out_i = q̂_i ⊙ Σ_visible k̂_j ⊙ v_j, q̂ = q/|q|, k̂ = k/|k|: every feature is a head of size 1 whose similarity is
the product of two numbers, without a row sum. Each of its D matrices is another one, so there is no single A:
`output` is defined instead. Here a head of the call is the paper's whole model width (call it with H = 1 for the
paper's own); value size must equal head size. It has no scale. Results over disjoint keys add up.

Source: Bolya et al. 2022, "Hydra Attention: Efficient Attention with Many Heads", arXiv 2209.07484 (cosine kernel).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import normalize

from attention_impls.call import Call, repeat_heads
from attention_impls.contract import Growth, Implementation, Output, Run, Support, Variant
from attention_impls.low_rank import SAME_KEYS
from attention_impls.undefined import either, no_scale, one, one_size


def _output(call: Call, rows: Tensor) -> Tensor:
    """Every pair of every feature: [B, H, R, J, D], summed over the visible keys."""
    q, k = call.q[:, :, rows], call.k
    q, k = (x / vector_norm(x, dim=-1, keepdim=True) for x in (q, k))
    products: Tensor = q[:, :, :, None] * (k * call.v)[:, :, None]
    visible = call.mask.visible(rows)
    return (products if visible is None else products.masked_fill(~visible.unsqueeze(-1), 0.0)).sum(3)


HYDRA = Variant(
    "hydra",
    output=_output,
    join="sum",
    row_stochastic=False,
    scale=one,
    why_not=either(no_scale("hydra"), one_size("hydra")),
    paper="Bolya et al. 2022, arXiv 2209.07484",
    formula="out = q̂ ⊙ Σ_visible k̂ ⊙ v",
    cost="time and memory O((I+J)·D) summed and running, O(I·J·D) and O(I·J) masked",
)


def _products(call: Call) -> Tensor:
    """k̂ ⊙ v [B, G, J, D], in float32 at least."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    return normalize(call.k.to(wide), dim=-1) * call.v.to(wide)


def _answer(call: Call, sums: Tensor) -> Output:
    """q̂ times the sums over keys [B, G, I or 1, D] that its head reads."""
    queries = normalize(call.q.to(sums.dtype), dim=-1)
    return Output((queries * repeat_heads(sums, call.q.shape[1])).to(call.q.dtype))


def _masked(call: Call, lse: bool) -> Run:
    """The mask as a matrix of zeros and ones times the products: any mask, one per head too."""
    visible = call.mask.to(call.q.device).visible()
    if visible is None:
        visible = torch.ones((1, 1, *call.q.shape[2:3], *call.k.shape[2:3]), dtype=torch.bool, device=call.q.device)

    def run(call: Call) -> Output:
        products = _products(call)
        products = products if visible.shape[1] == 1 else repeat_heads(products, call.q.shape[1])
        return _answer(call, visible.to(products.dtype) @ products)

    return run


def _keys_seen(call: Call) -> Tensor | None:
    """[B, 1, J, 1]: the keys within their sequence; None when all are."""
    mask = call.mask.to(call.q.device)
    if mask.key_lengths is None:
        return None
    at = mask.k_start + torch.arange(mask.kv_len, device=call.q.device)
    return (at < mask.key_lengths.unsqueeze(-1))[:, None, :, None]


def _seen(products: Tensor, seen: Tensor | None) -> Tensor:
    return products if seen is None else products.masked_fill(~seen, 0.0)


def _summed(call: Call, lse: bool) -> Run:
    """One sum over keys for all queries."""
    seen = _keys_seen(call)
    return lambda call: _answer(call, _seen(_products(call), seen).sum(2, keepdim=True))


def _running(call: Call, lse: bool) -> Run:
    """Sums up to each key, read where each query stands; a zero in front for queries before the first key."""
    mask, seen = call.mask, _keys_seen(call)
    assert not isinstance(mask.q_start, Tensor)  # narrows the type: Support names the starts
    ends = torch.arange(mask.q_len, device=call.q.device) + (mask.q_start - mask.k_start + 1)
    ends = ends.clamp(0, mask.kv_len)  # how many keys each query sees

    def run(call: Call) -> Output:
        sums = _seen(_products(call), seen).cumsum(2)
        return _answer(call, torch.nn.functional.pad(sums, (0, 0, 1, 0))[:, :, ends])

    return run


def _not_causal(call: Call) -> str | None:
    return None if call.mask.causal else "is the causal form; the summed one takes this mask"


_STARTS = frozenset({"zero", "aligned", "any"})
_CAUSAL = Support(masks=frozenset({"causal", "key_lengths", "empty_rows"}), starts=_STARTS, why_not=_not_causal)
_entry = partial(Implementation, variant=HYDRA)

IMPLEMENTATIONS = [
    _entry("masked", prepare=_masked),
    _entry("summed", prepare=_summed, support=Support(masks=SAME_KEYS), growth=Growth(1, 1)),
    _entry("running", prepare=_running, support=_CAUSAL, growth=Growth(1, 1)),
]
