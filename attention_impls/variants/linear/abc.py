"""Attention with bounded memory control (ABC): keys and values are written into S slots, and queries read the slots.

Slot s holds weighted means of what a query may see: K̃_is = Σ_j P_isj k_j, Ṽ_is = Σ_j P_isj v_j, P_isj = softmax
over visible j of control[j, s]; out_i = Σ_s softmax_s(scale · q_i·K̃_is) Ṽ_is. So A_ij = Σ_s softmax_s(scale ·
q_i·K̃_is) P_isj, and rows sum to 1. control [B, G, J, S] is a function of the token (exp(control) is the paper's
φ). Where it is scale · p·k_j for learned p and all queries see the same keys, it is `luna`. With S = 1 queries
change nothing. A query without keys gives zeros.

Source: Peng et al. 2021, "ABC: Attention with Bounded-memory Control", arXiv 2110.02488. `blocked` takes each
query's slots from all its keys; `materialised` and `factored` fill them once, where all queries see the same;
`chunked`, causal, keeps slots and their log-sums from chunk to chunk, and its cache for decoding is the slots.
Option: slots, the size S.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_impls.bounded_memory import Slots, chunkwise, prefill, read
from attention_impls.call import Call, hide, repeat_heads, softmax_rows
from attention_impls.contract import Growth, Implementation, Output, Parameter, Run, Support, Variant
from attention_impls.delta_rule import Layout
from attention_impls.low_rank import OverKeys, low_rank
from attention_impls.mask import Mask
from attention_impls.tiling import checked, spans

CHUNK = 16


def _weights(call: Call, rows: Tensor) -> Tensor:
    control = call.parameters["control"].mT[:, :, None].expand(-1, -1, len(rows), -1, -1)
    visible = call.mask.visible(rows)
    writes = softmax_rows(hide(control, None if visible is None else visible.unsqueeze(-2)))  # [B, H, R, S, J]
    slots = torch.einsum("bhrsj,bhjd->bhrsd", writes, call.k)
    reads = torch.softmax(torch.einsum("bhrd,bhrsd->bhrs", call.q[:, :, rows], slots) * call.scale, -1)
    weights: Tensor = torch.einsum("bhrs,bhrsj->bhrj", reads, writes)
    return weights


def blocked(variant: Variant, block: int = 8) -> Implementation:
    """Blocks of `block` queries with slots of their own, each computed again in the backward: any mask."""
    checked("block", block)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        plan = [(lo, hi, *_part(mask, lo, hi)) for lo, hi in spans(mask.q_len, block)]

        def run(call: Call) -> Output:
            wide, heads = call.map(lambda t: t.to(torch.promote_types(t.dtype, torch.float32))), call.q.shape[1]
            k, v, control = (repeat_heads(x, heads) for x in (wide.k, wide.v, wide.parameters["control"]))
            q = wide.q * call.scale
            parts = [
                checkpoint(  # nothing random inside: no random state need be kept
                    _attend, q[:, :, lo:hi], k[:, :, :n], v[:, :, :n], control[:, :, :n], visible,
                    use_reentrant=False, preserve_rng_state=False,
                )
                for lo, hi, n, visible in plan
            ]  # fmt: skip
            return Output(torch.cat(parts, 2).to(call.q.dtype))

        return run

    return Implementation(
        "blocked",
        variant,
        prepare,
        configure=partial(blocked, variant),
        growth=Growth(bytes=1, at="slots and block fixed"),
    )


def _part(mask: Mask, lo: int, hi: int) -> tuple[int, Tensor | None]:
    """How many keys any of the rows lo..hi may see, and the boolean form of those with an axis for slots."""
    rows = mask.rows(lo, hi)
    part = rows.keys(0, max(rows.last_visible(), 1)).simplified()
    visible = part.visible()
    return part.kv_len, None if visible is None else visible.unsqueeze(-2)


def _attend(q: Tensor, k: Tensor, v: Tensor, control: Tensor, visible: Tensor | None) -> Tensor:
    writes = softmax_rows(hide(control.mT.unsqueeze(2), visible))  # [B, H, R or 1, S, n]
    return read(q, writes @ k.unsqueeze(2), writes @ v.unsqueeze(2))


def _factors(call: Call, over_keys: OverKeys) -> tuple[Tensor, Tensor]:
    writes = over_keys(call.parameters["control"].mT)  # [B, G, S, J]
    slots = repeat_heads(writes @ call.k, call.q.shape[1])
    return torch.softmax(call.q @ (slots * call.scale).mT, -1), writes


def _resume(call: Call, cache: Slots) -> Output:
    layout = Layout.of(call)
    return Output(chunkwise(call, layout, CHUNK, cache, layout.before_queries))


_CAUSAL = Support(
    masks=frozenset({"causal", "key_lengths", "empty_rows"}),
    starts=frozenset({"zero", "aligned", "any"}),
    why_not=lambda call: None if call.mask.causal else "is the causal form; the factored one takes this mask",
)


def chunked(variant: Variant, chunk: int = CHUNK) -> Implementation:
    """Chunks of `chunk` keys against the slots written before them; causal. Raises ValueError for a chunk below 1."""
    checked("chunk", chunk)

    def prepare(call: Call, lse: bool) -> Run:
        layout = Layout.of(call)
        return lambda call: Output(chunkwise(call, layout, chunk))

    return Implementation("chunked", variant, prepare, _CAUSAL, prefill=prefill, resume=_resume,
                          configure=partial(chunked, variant), growth=Growth(1, 1, "slots fixed"))  # fmt: skip


def implementations(slots: int = 32) -> list[Implementation]:
    """The forms with `slots` slots. Raises ValueError for fewer than one."""
    variant = Variant(
        "abc",
        weights=_weights,
        parameters={"control": Parameter("B G J S", "token", sizes={"S": checked("slots", slots)})},
        paper="Peng et al. 2021, arXiv 2110.02488",
        formula="A = Σ_s softmax_s(scale · q·K̃_s) P_s, K̃_s = P_s k, P_s = softmax of control over visible keys",
        cost="time O((I+J)·S·(D+E)), chunked O(J·S·(chunk + D + E)), blocked O(I·J·S·(D+E)); state S·(D+E)",
    )
    return [blocked(variant), *low_rank(variant, _factors), chunked(variant)]
