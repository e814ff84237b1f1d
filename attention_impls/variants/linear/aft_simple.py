"""AFT-simple: keys weighed feature by feature, without positions.

out_i = σ(q_i) ⊙ Σ_visible exp(k_j) ⊙ v_j / Σ_visible exp(k_j), elementwise: every feature has a softmax over keys
of its own, the same for all queries that see the same keys, so there is no single A [I, J], and `output` is defined
instead. It is `aft_full` with w = 0. Value size must equal head size; there is no scale. A query that sees no key
gives zeros.

Source: Zhai et al. 2021, "An Attention Free Transformer", arXiv 2105.14103. `summed` takes one softmax for all
queries; `chunked`, causal, keeps a log-sum and a mean of values a feature, so that a later key can neither overflow
nor hide an earlier one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, repeat_heads, softmax_rows
from attention_impls.contract import Growth, Implementation, Output, Run, Support, Variant
from attention_impls.delta_rule import Layout
from attention_impls.low_rank import SAME_KEYS
from attention_impls.tiling import checked, spans
from attention_impls.undefined import either, no_scale, one, one_size
from attention_impls.variants.linear.aft_full import blocked


def _output(call: Call, rows: Tensor) -> Tensor:
    """A softmax over keys for each query and feature: [B, H, R, D, J]."""
    logits = call.k.mT[:, :, None].expand(-1, -1, len(rows), -1, -1)
    visible = call.mask.visible(rows)
    weights = softmax_rows(hide(logits, None if visible is None else visible.unsqueeze(-2)))
    return call.q[:, :, rows].sigmoid() * (weights * call.v.mT[:, :, None]).sum(-1)


AFT_SIMPLE = Variant(
    "aft_simple",
    output=_output,
    row_stochastic=False,
    scale=one,
    why_not=either(no_scale("aft_simple"), one_size("aft_simple")),
    paper="Zhai et al. 2021, arXiv 2105.14103",
    formula="out = σ(q) ⊙ Σ exp(k) ⊙ v / Σ exp(k)",
    cost="time and memory O((I+J)·D) summed, O((I+J)·chunk·D) chunked; time O(I·J·D) blocked",
)


def _columns(call: Call, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys and values [B, G, D, J] in float32 at least, keys −inf where `hidden` [B, 1, J]."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    keys = call.k.to(wide).mT
    keys = keys if hidden is None else keys.masked_fill(hidden.unsqueeze(1), float("-inf"))
    return keys, call.v.to(wide).mT


def _gated(call: Call, means: Tensor) -> Output:
    """σ(q) ⊙ means [B, G, I or 1, D]."""
    return Output((repeat_heads(means, call.q.shape[1]) * call.q.to(means.dtype).sigmoid()).to(call.q.dtype))


def _summed(call: Call, lse: bool) -> Run:
    """One softmax over keys a feature, for all queries."""
    visible = call.mask.simplified().to(call.q.device).visible(torch.zeros(1, dtype=torch.long))
    hidden = None if visible is None else ~visible[:, 0]

    def run(call: Call) -> Output:
        keys, values = _columns(call, hidden)
        return _gated(call, (softmax_rows(keys) * values).sum(-1).unsqueeze(2))

    return run


def chunked(chunk: int = 16) -> Implementation:
    """Chunks of `chunk` keys against what came before them. Raises ValueError for a chunk below 1."""
    checked("chunk", chunk)

    def prepare(call: Call, lse: bool) -> Run:
        layout = Layout.of(call)
        return lambda call: _gated(call, _running_means(call, layout, chunk))

    support = Support(
        masks=frozenset({"causal", "key_lengths", "empty_rows"}),
        starts=frozenset({"zero", "aligned", "any"}),
        why_not=lambda call: None if call.mask.causal else "is the causal form; the summed one takes this mask",
    )
    return Implementation("chunked", AFT_SIMPLE, prepare, support, configure=chunked, growth=Growth(1, 1))


def _running_means(call: Call, layout: Layout, chunk: int) -> Tensor:
    """[B, G, I, D]: the mean of values that each query's feature has seen."""
    keys, values = _columns(call, layout.hidden)
    total, mean = keys.new_full((*keys.shape[:3], 1), float("-inf")), torch.zeros_like(values[..., :1])
    before = min(max(-layout.offset, 0), layout.rows)  # queries that stand before the first key
    means = [keys.new_zeros((*keys.shape[:2], before, keys.shape[2]))]
    for lo, hi in spans(layout.keys, chunk):
        # the keys so far count as one, of their summed weight and mean value
        logits = torch.cat([total, keys[..., lo:hi]], -1)
        held = torch.cat([mean, values[..., lo:hi]], -1)
        first, last = layout.read_at(lo, hi)
        at = (torch.arange(first, last, device=keys.device) + layout.offset).clamp_max(hi - 1) - lo
        sees = torch.arange(hi - lo + 1, device=keys.device) <= at[:, None, None] + 1  # [R, 1, 1 + C]
        rows = softmax_rows(hide(logits.unsqueeze(2), sees))  # [B, G, R, D, 1 + C]
        means.append((rows * held.unsqueeze(2)).sum(-1))
        total, mean = lse_rows(logits).unsqueeze(-1), (softmax_rows(logits) * held).sum(-1, keepdim=True)
    return torch.cat(means, 2)


IMPLEMENTATIONS = [
    blocked(AFT_SIMPLE),
    Implementation("summed", AFT_SIMPLE, _summed, Support(masks=SAME_KEYS), growth=Growth(1, 1)),
    chunked(),
]
