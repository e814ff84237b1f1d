"""cosFormer: linear attention of relu features whose similarity falls with distance as a cosine.

A_ij = relu(q_i)·relu(k_j) cos(angle_i − angle_j) / Σ_visible, angle_p = π/2 · p/P at absolute position p, P the
longer of the two lengths: a constant table [P] of the workload, as in the paper. Every weight is ≥ 0. cos(a − b) =
cos a cos b + sin a sin b, so the features are [relu(x) cos, relu(x) sin], 2D of them, and the three forms are those
of linear attention. A row whose visible keys share no positive feature with it gives zeros; published code divides
by 1e-6 at least instead. It has no scale: one would cancel. With all angles equal it is linear attention with φ =
relu.

Source: Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention", arXiv 2202.08791.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Implementation, Output, Parameter, Run, Variant
from attention_impls.linearised import CHUNK, Feature, linearised, log_weight, normalised
from attention_impls.undefined import either, no_scale, one


def _table(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.arange(shape[0]) * (math.pi / 2 / shape[0])


def _angles(call: Call, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Angles of query rows [1|B, 1, R, 1] and of all keys [J, 1]. Queries before position 0 see no key."""
    table = call.parameters["angle"]
    table = table.to(torch.promote_types(table.dtype, call.q.dtype))
    queries = table[call.mask.q_positions(rows).clamp(min=0)]
    keys = call.mask.k_start + torch.arange(call.k.shape[2], device=table.device)
    return queries.view(-1, 1, len(rows), 1), table[keys].unsqueeze(-1)


def _similar(call: Call, rows: Tensor) -> Tensor:
    queries, keys = _angles(call, rows)
    s: Tensor = call.q[:, :, rows].relu() @ call.k.relu().mT * (queries - keys.mT).cos().to(call.q.dtype)
    visible = call.mask.visible(rows)
    return s if visible is None else s.masked_fill(~visible, 0.0)


def _weights(call: Call, rows: Tensor) -> Tensor:
    s = _similar(call, rows)
    return normalised(s, s.sum(-1, keepdim=True))


def _lse(call: Call, rows: Tensor) -> Tensor:
    return log_weight(_similar(call, rows).sum(-1, keepdim=True))


def _off_the_table(call: Call) -> str | None:
    mask, positions = call.mask, call.parameters["angle"].shape[0]
    if mask.k_start + mask.kv_len > positions or mask.k_start < 0:
        return f"cosformer has angles for positions 0 … {positions - 1} only; keys lie beyond them"
    if call.q.shape[0] and (mask.last_query() >= positions or (mask.first_query() < 0 and not mask.causal)):
        return f"cosformer has angles for positions 0 … {positions - 1} only; queries stand beyond them"
    return None


COSFORMER = Variant(
    "cosformer",
    weights=_weights,
    lse=_lse,
    join="lse",
    scale=one,
    why_not=either(no_scale("cosformer"), _off_the_table),
    parameters={
        "angle": Parameter("P", "constant", draw=_table, sizes={"P": lambda w: max(w.q_len, w.kv_len)}, dtype="float32")
    },
    paper="Qin et al. 2022, arXiv 2202.08791",
    formula="A = relu(q)·relu(k) cos(π/2 (i − j)/P) over its row sums",
    cost="time O(I·J·D) quadratic, O(2(I+J)·D·E) parallel and chunked; memory O(I·J), or a state of 2D·E and one chunk",
)


def _turns(call: Call) -> Callable[[Call], Call]:
    """What makes q and k the features of their positions, whose factors are worked out once; in float32 at least."""
    rows = torch.arange(call.q.shape[2], device=call.q.device)
    queries, keys = _angles(replace(call, mask=call.mask.to(call.q.device)), rows)

    def turned(x: Tensor, angle: Tensor) -> Tensor:
        positive = x.to(angle.dtype).relu()
        return torch.cat([positive * angle.cos(), positive * angle.sin()], -1)

    return lambda call: replace(call, q=turned(call.q, queries), k=turned(call.k, keys), parameters={}, axes={})


def _at_positions(inner: Implementation) -> Implementation:
    """A form of linear attention, given features for q and k."""

    def prepare(call: Call, lse: bool) -> Run:
        turn = _turns(call)
        run = inner.prepare(turn(call), lse)

        def cast(call: Call) -> Output:
            out, total = run(turn(call))
            return Output(out.to(call.q.dtype), total)

        return cast

    configure = inner.configure
    if configure is None:
        return replace(inner, prepare=prepare)

    def configured(chunk: int = CHUNK) -> Implementation:
        return _at_positions(configure(chunk=chunk))

    return replace(inner, prepare=prepare, configure=configured)


def _given(call: Call) -> tuple[Feature, Feature]:
    return lambda q: q, lambda k: k


IMPLEMENTATIONS = [_at_positions(inner) for inner in linearised(COSFORMER, _given)]
