"""Gated delta rule: a state that forgets, and overwrites what it held under a key instead of adding to it.

S_j = α_j (I − β_j k̂_j k̂_jᵀ) S_{j−1} + β_j k̂_j v_jᵀ [D, E];  out_i = scale · q_iᵀ S_i, S_i the state after the last
key that i may see. α = exp(decay) in (0, 1] and β in (0, 1), per token and key/value head; k̂ = k / |k| (with keys of
any length the products explode). A hidden key is as if it were not there: it neither writes nor decays.
As a matrix: A_ij = scale · q_iᵀ [Π_{j<l≤i} α_l (I − β_l k̂_l k̂_lᵀ)] β_j k̂_j. Rows need not sum to 1.

Source: Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks", arXiv 2412.06464. There queries are
normalised too and the output goes through a norm; a query's length only scales its row, so it is left alone.
decay 0 is DeltaNet (2406.06484); without the erasing term it is simple gated linear attention. Causal only.
Chunks follow the WY form: u_i = β_i (v_i − α_i S_{i−1}ᵀ k̂_i) from one unit-triangular solve a chunk.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Output, Parameter, Run, Support, Variant
from attention_impls.delta_rule import Layout, chunkwise, empty_state, prefill, recurrent

CHUNK = 64


def squash_decay(x: Tensor) -> Tensor:
    """A projection -> log α < 0, about -0.05 (α = 0.95) at zero."""
    return -softplus(x - 3.0)


def _draw_decay(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return squash_decay(torch.randn(shape, generator=generator))


def _draw_beta(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=generator).sigmoid()


def _weights(call: Call, rows: Tensor) -> Tensor:
    """Rows of A, from the last key to the first: r ← α (r − β (r·k̂) k̂), r = scale · q at the start."""
    r = call.q[:, :, rows] * call.scale  # [B, H, R, D]
    k = normalize(call.k, dim=-1)
    decay, beta = call.parameters["decay"].to(r.dtype), call.parameters["beta"].to(r.dtype)
    visible = call.mask.visible(rows)
    shown = torch.ones((), dtype=torch.bool) if visible is None else visible
    shown = shown.to(r.device).expand(*(max(n, 1) for n in shown.shape[:-2]), len(rows), k.shape[2])
    columns = []
    for j in reversed(range(k.shape[2])):
        key, sees = k[:, :, j, None], shown[..., j, None]
        weight = (r * key).sum(-1, keepdim=True) * beta[:, :, j, None, None]
        after = (r - weight * key) * decay[:, :, j, None, None].exp()
        columns.append(weight.masked_fill(~sees, 0.0))
        r = torch.where(sees, after, r)
    return torch.cat(columns[::-1], -1)


def _not_causal(call: Call) -> str | None:
    return None if call.mask.causal else "gated_delta is causal only: a state knows what came before; add `causal`"


def _documents(call: Call) -> str | None:
    """The kernels empty the state where a document begins: each must be one run of tokens, the same for queries."""
    own, keys = call.mask.q_segments, call.mask.k_segments
    if own is None or keys is None:
        return None
    if own.shape != keys.shape or not torch.equal(own, keys) or call.mask.q_start != call.mask.k_start:
        return "takes packed documents only where queries and keys are the same tokens"
    starts = (keys[:, 1:] != keys[:, :-1]).sum(1) + 1
    distinct = torch.tensor([row.unique().numel() for row in keys], device=keys.device)
    return None if torch.equal(starts, distinct) else "takes packed documents only where each is one run of tokens"


def _oracle(call: Call, rows: Tensor) -> Tensor:
    """The chunkwise form for long sequences; where it cannot go, the rows themselves."""
    if isinstance(call.mask.q_start, Tensor) or _documents(call):
        return _weights(call, rows) @ call.v
    return chunkwise(call, Layout.of(call), empty_state(call), CHUNK)[:, :, rows]


GATED_DELTA = Variant(
    "gated_delta",
    weights=_weights,
    oracle=_oracle,
    parameters={
        "decay": Parameter("B G J", "token", draw=_draw_decay, dtype="float32", squash=squash_decay),
        "beta": Parameter("B G J", "token", draw=_draw_beta, squash=torch.sigmoid),
    },
    couples=frozenset({"keys"}),
    masks=frozenset({"causal", "key_lengths", "segments", "empty_rows"}),
    row_stochastic=False,
    why_not=_not_causal,
    paper="Yang, Kautz, Hatamizadeh 2024, arXiv 2412.06464",
    formula="S_j = α_j (I − β_j k̂_j k̂_jᵀ) S_{j−1} + β_j k̂_j v_jᵀ; out_i = scale · q_iᵀ S_i",
    cost="time O((I+J)·D·E), chunkwise O(J·(C·(D+E) + D·E)) in matrix products; state D·E a key/value head",
)


def _prepared(chunk: int, call: Call, lse: bool) -> Run:
    layout = Layout.of(call)
    return lambda call: Output(chunkwise(call, layout, empty_state(call), chunk))


def _one_by_one(call: Call, lse: bool) -> Run:
    layout = Layout.of(call)
    return lambda call: Output(recurrent(call, layout, empty_state(call)))


def _resume(call: Call, cache: Tensor) -> Output:
    layout = Layout.of(call)
    return Output(recurrent(call, layout, cache, layout.before_queries))


_SUPPORT = Support(
    masks=GATED_DELTA.masks,
    starts=frozenset({"zero", "aligned", "any"}),
    why_not=_documents,
)


def _chunkwise(chunk: int = CHUNK) -> Implementation:
    """Chunks of `chunk` keys: products of matrices inside, a state between. Raises ValueError for a chunk below 1."""
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1; got {chunk}")
    prepare = partial(_prepared, chunk)
    return Implementation("chunkwise", GATED_DELTA, prepare, _SUPPORT, configure=_chunkwise, growth=Growth(1, 1))


IMPLEMENTATIONS = [
    Implementation(
        "recurrent", GATED_DELTA, _one_by_one, _SUPPORT, prefill=prefill, resume=_resume, growth=Growth(1, 1)
    ),
    _chunkwise(),
]
