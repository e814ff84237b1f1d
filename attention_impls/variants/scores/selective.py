"""Selective attention: A = softmax(L − F), L = scale · q kᵀ; a token can tell later ones to forget a key.

The first head chooses: S = relu(L of head 0) over the keys it sees, but 0 for a token's own key and for the key at
position 0; F_ij = Σ_{l<i} S_lj, what all earlier queries said of key j, is taken from the logits of every head. It has
no parameter. Causal only, and every earlier query must be in the call: queries begin at position 0. With S = 0 (head 0
agrees with nothing) it is `softmax`. Source: Leviathan, Kalman, Matias 2024, "Selective Attention Improves
Transformer", arXiv 2410.02703.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_impls.call import Call, hide, lse_rows, softmax_for, softmax_rows, wide
from attention_impls.contract import MASK_WORDS, Implementation, Output, Run, Support
from attention_impls.makers import softmax_of
from attention_impls.mask import Mask
from attention_impls.scored import dot
from attention_impls.tiling import checked, spans


def _logits(call: Call, rows: Tensor) -> Tensor:
    every = torch.arange(call.q.shape[2], device=rows.device)
    first = call.q[:, :1] @ call.k[:, :1].mT * call.scale  # [B, 1, I, J]
    said = torch.relu(first).masked_fill(~_choosing(call.mask, every), 0.0)
    earlier = (every < rows[:, None]).to(said.dtype)  # [R, I]
    return call.q[:, :, rows] @ call.k.mT * call.scale - earlier @ said


def _choosing(mask: Mask, rows: Tensor) -> Tensor:
    """[1|B, 1, R, J]: which keys head 0 may speak of: those it sees, but its own and the one at position 0."""
    visible = mask.visible(rows)
    at = mask.k_start + torch.arange(mask.kv_len, device=rows.device)
    others = (at != mask.q_positions(rows).unsqueeze(-1)) & (at != 0)
    return others[None, None] if visible is None else visible[:, :1] & others


def _why_not(call: Call) -> str | None:
    if not call.mask.causal:
        return "selective is causal only: a token speaks to later ones; add causal"
    start = call.mask.q_start
    if isinstance(start, Tensor) or start != 0:
        return "selective needs every earlier query in the call: queries must begin at position 0"
    return None


SELECTIVE = softmax_of(
    "selective",
    _logits,
    couples=frozenset({"queries", "heads"}),
    masks=MASK_WORDS - {"full"},
    why_not=_why_not,
    paper="Leviathan, Kalman, Matias 2024, arXiv 2410.02703",
    formula="A = softmax(L − F), L = scale · q kᵀ, F_ij = Σ_{l<i} relu(L_lj of head 0), l ≠ j, j ≠ 0",
    cost="time O(I·J·D); memory O(I·J) materialised, O(block·J + I·J/block) chunked",
)


def _selected(logits: Tensor, choosing: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """L − F [B, H, R, J] of rows that follow one another, and F after them [B, 1, 1, J]; `before` it is that."""
    said = torch.relu(logits[:, :1]).masked_fill(~choosing, 0.0)
    heard = said.cumsum(2)
    forgotten = heard - said if before is None else heard - said + before
    after = heard[:, :, -1:] if before is None else heard[:, :, -1:] + before
    return logits - forgotten, after


def _naive(call: Call, lse: bool) -> Run:
    """Every score in memory, and one running sum down the columns of head 0."""
    mask = call.mask.to(call.q.device)
    choosing = _choosing(mask, torch.arange(mask.q_len, device=call.q.device))
    visible, softmax = mask.simplified().visible(), softmax_for(mask)

    def run(call: Call) -> Output:
        whole = call.expanded().map(wide)
        logits = hide(_selected(wide(dot(whole)), choosing, None)[0], visible)
        return Output((softmax(logits) @ whole.v).to(call.q.dtype), lse_rows(logits) if lse else None)

    return run


def chunked(block: int = 64) -> Implementation:
    """Chunks of `block` queries, what they said of each key handed on; each is computed again in the backward.

    Raises ValueError for a block below 1.
    """
    checked("block", block)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.to(call.q.device)
        rows = torch.arange(mask.q_len, device=call.q.device)
        plan = [(lo, hi, mask.visible(rows[lo:hi]), _choosing(mask, rows[lo:hi])) for lo, hi in spans(len(rows), block)]

        def run(call: Call) -> Output:
            outs, lses, said = [], [], None
            for part in plan:
                attend = partial(_attend, *part, lse)
                out, total, said = checkpoint(attend, call, said, use_reentrant=False, preserve_rng_state=False)
                outs.append(out)
                lses.append(total)
            return Output(torch.cat(outs, 2), torch.cat(lses, 2) if lse else None)

        return run

    return Implementation("chunked", SELECTIVE, prepare, Support(lse="differentiable"), configure=chunked)


def _attend(
    lo: int, hi: int, visible: Tensor | None, choosing: Tensor, lse: bool, call: Call, said: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    part = call.rows(lo, hi, call.mask).expanded().map(wide)
    logits, said = _selected(wide(dot(part)), choosing, said)
    logits = hide(logits, visible)
    return (softmax_rows(logits) @ part.v).to(call.q.dtype), lse_rows(logits) if lse else None, said


IMPLEMENTATIONS = [Implementation("naive", SELECTIVE, _naive, Support(lse="differentiable")), chunked()]
