"""Forgetting attention (FoX): softmax attention whose logits fall by every forget gate between key and query.

L_ij = scale · q_i·k_j + Σ_{j<l≤i} log f_l,  A = softmax(L),  f in (0, 1] for each token and query head. forget holds
log f ≤ 0 [B, H, J]; the gate of key column l stands at its position, whether or not anybody sees that key. Causal
only. With f = 1 it is `softmax`; with one constant gate a head, log f = −m, it is `alibi` of slope m. No position
encoding beside it is needed. Sums run over keys of the whole call, so that parts of the keys cannot be joined.
Sums are taken in float64: the difference of two long ones is all that counts. `blocks` takes it about the first
query of each block, where both sides are small again.
Source: Lin et al. 2025, "Forgetting Transformer", arXiv 2503.02130.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from attention_impls.biased import K_AT, Q_AT, Seen, blocks, row_distances, whole
from attention_impls.call import Call, hide, lse_rows
from attention_impls.contract import MASK_WORDS, Output, Parameter
from attention_impls.makers import softmax_of


def squash_forget(x: Tensor) -> Tensor:
    """A projection -> log f < 0; f = 0.95 at zero."""
    return logsigmoid(x + 3.0)


def _draw_forget(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return squash_forget(torch.randn(shape, generator=generator))


def _logits(call: Call, rows: Tensor) -> Tensor:
    """The gates up to each row's own place, summed from that place back; a key's own gate is not among its sum."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    reached = row_distances(call, rows) >= 0
    gates = torch.where(reached, call.parameters["forget"].to(wide)[:, :, None], 0.0)  # [B, H, R, J]
    fallen = gates.flip(-1).cumsum(-1).flip(-1) - gates
    return call.q[:, :, rows] @ call.k.mT * call.scale + fallen


def _not_causal(call: Call) -> str | None:
    return None if call.mask.causal else "fox is causal only: gates lie between a key and a later query; add causal"


FOX = softmax_of(
    "fox",
    _logits,
    parameters={"forget": Parameter("B H J", "token", draw=_draw_forget, dtype="float32", squash=squash_forget)},
    couples=frozenset({"keys"}),
    masks=MASK_WORDS - {"full"},
    why_not=_not_causal,
    paper="Lin et al. 2025, arXiv 2503.02130",
    formula="A = softmax(scale · q_i·k_j + Σ_{j<l≤i} log f_l), scale = D^-1/2",
    cost="time O(I·J·D); memory O(H·I·J) naive, O(H·block·J) blocks",
)


def _sums(call: Call) -> tuple[Tensor, Tensor]:
    """Running sums of log f in float64: up to each query's place [B, H, R] and up to each key [B, H, C]."""
    sums = call.parameters["forget"].double().cumsum(-1)
    place = call.parameters[Q_AT] - call.parameters[K_AT][0]  # [1|B, R]
    place = place.clamp(0, sums.shape[-1] - 1)[:, None].expand(*sums.shape[:2], -1)
    return sums.gather(-1, place), sums


def _attended(call: Call, seen: Seen, fallen: Tensor, lse: bool) -> Output:
    logits = hide(torch.add(fallen, call.q @ call.k.mT, alpha=call.scale), seen.visible)
    return Output(seen.softmax(logits) @ call.v, lse_rows(logits) if lse else None)


def _naive(call: Call, seen: Seen, lse: bool) -> Output:
    """Every difference of two sums in memory."""
    mine, keys = _sums(call)
    return _attended(call, seen, (mine[..., None] - keys[..., None, :]).to(call.q.dtype), lse)


def _about_the_first(call: Call, seen: Seen, lse: bool) -> Output:
    """The difference as that of the queries to the first of them, and of that one to the keys."""
    mine, keys = _sums(call)
    since, until = (mine - mine[..., :1]).to(call.q.dtype), (mine[..., :1] - keys).to(call.q.dtype)
    return _attended(call, seen, since[..., None] + until[..., None, :], lse)


# The gradient of the LSE to float32 gates is rounded to float32 whatever q's own dtype: it is offered as a value.
IMPLEMENTATIONS = [whole(FOX, "naive", _naive, says="value"), blocks(FOX, _about_the_first, says="value")]
