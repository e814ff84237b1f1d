"""The gated delta rule's state over a stream of keys: one key at a time, or in chunks.

S_j = α_j (I − β_j k̂_j k̂_jᵀ) S_{j−1} + β_j k̂_j v_jᵀ [D, E]; query row r reads scale · qᵀ S after its last key.
Everything runs in float32 at least: a state in half precision forgets, and triangular solves have no half form.
Chunks take the WY form of Yang et al. 2024 (arXiv 2406.06484, with decays 2412.06464): with u_i = β_i (v_i − α_i
S_{i−1}ᵀ k̂_i), S_i = α_i S_{i−1} + k̂_i u_iᵀ, and all u of a chunk come from one unit-triangular solve.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attention_impls.call import Call

CHUNK = 64  # keys a chunk of prefill


@dataclass(frozen=True, eq=False)
class Layout:
    """What is known before any value: row r reads the state after key `offset` + r (at most the last).

    hidden [B, 1, J]: keys past their sequence's length. document [B, 1, J]: the document of each key.
    """

    offset: int
    keys: int
    rows: int
    hidden: Tensor | None
    document: Tensor | None

    @classmethod
    def of(cls, call: Call) -> Layout:
        """From a causal call's mask, with one start for all sequences; documents are runs of tokens."""
        mask = call.mask.to(call.q.device)
        if isinstance(mask.q_start, Tensor):
            raise ValueError("the recurrence needs one start for all sequences; got one for each")
        hidden = None
        if mask.key_lengths is not None:
            at = mask.k_start + torch.arange(mask.kv_len, device=mask.key_lengths.device)
            hidden = (at >= mask.key_lengths.unsqueeze(-1)).unsqueeze(1)
        document = None if mask.k_segments is None else mask.k_segments.unsqueeze(1)
        return cls(mask.q_start - mask.k_start, mask.kv_len, mask.q_len, hidden, document)

    @property
    def before_queries(self) -> int:
        """How many keys stand before the first query (one key at least is left for the queries)."""
        return min(max(self.offset, 0), self.keys - 1)

    def read_at(self, lo: int, hi: int) -> tuple[int, int]:
        """The query rows first..last that read a state after one of the keys lo..hi."""
        first = min(max(lo - self.offset, 0), self.rows)
        last = self.rows if hi == self.keys else min(max(hi - self.offset, 0), self.rows)
        return first, max(first, last)


@dataclass(frozen=True, eq=False)
class _Stream:
    """k̂ [B, G, J, D], v [B, G, J, E], log α and β [B, G, J, 1]; hidden keys have α = 1, β = 0: they leave no trace."""

    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor

    def cut(self, lo: int, hi: int) -> _Stream:
        return _Stream(self.k[:, :, lo:hi], self.v[:, :, lo:hi], self.decay[:, :, lo:hi], self.beta[:, :, lo:hi])


def empty_state(call: Call) -> Tensor:
    """Zeros [B, G, D, E], in float32 at least."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    return call.k.new_zeros((*call.k.shape[:2], call.k.shape[-1], call.v.shape[-1]), dtype=wide)


def _stream(call: Call, layout: Layout, dtype: torch.dtype) -> _Stream:
    decay, beta = call.parameters["decay"].to(dtype), call.parameters["beta"].to(dtype)
    if layout.hidden is not None:
        decay, beta = decay.masked_fill(layout.hidden, 0.0), beta.masked_fill(layout.hidden, 0.0)
    keys = normalize(call.k.to(dtype), dim=-1)
    return _Stream(keys, call.v.to(dtype), decay.unsqueeze(-1), beta.unsqueeze(-1))


def recurrent(call: Call, layout: Layout, state: Tensor, start: int = 0) -> Tensor:
    """out [B, H, I, E]: one key after another from `start` on, `state` [B, G, D, E] holding those before it."""
    stream, q = _stream(call, layout, state.dtype), _queries(call, state.dtype)
    outs = [_unread(call, layout, q)]
    for j in range(start, layout.keys):
        state = _step(state, stream.cut(j, j + 1), _starts_document(layout, j))
        first, last = layout.read_at(j, j + 1)
        if last > first:
            outs.append(q[..., first:last, :] @ state.unsqueeze(2))
    return torch.cat(outs, 3).flatten(1, 2).to(call.q.dtype)


def chunkwise(call: Call, layout: Layout, state: Tensor, chunk: int, start: int = 0) -> Tensor:
    """As `recurrent`, `chunk` keys at a time."""
    stream, q = _stream(call, layout, state.dtype), _queries(call, state.dtype)
    outs = [_unread(call, layout, q)]
    for lo in range(start, layout.keys, chunk):
        hi = min(lo + chunk, layout.keys)
        part = _solved(stream.cut(lo, hi), layout, lo, hi, state)
        first, last = layout.read_at(lo, hi)
        if last > first:
            at = (torch.arange(first, last, device=q.device) + layout.offset).clamp_max(hi - 1) - lo
            outs.append(part.read(q[..., first:last, :], at, state))
        state = part.after(state)
    return torch.cat(outs, 3).flatten(1, 2).to(call.q.dtype)


def prefill(call: Call) -> Tensor:
    """The state [B, G, D, E] after the keys that stand before the call's first query: a cache for decoding."""
    layout, state = Layout.of(call), empty_state(call)
    stream = _stream(call, layout, state.dtype)
    for lo in range(0, layout.before_queries, CHUNK):
        hi = min(lo + CHUNK, layout.before_queries)
        state = _solved(stream.cut(lo, hi), layout, lo, hi, state).after(state)
    return state


def _queries(call: Call, dtype: torch.dtype) -> Tensor:
    """[B, G, H/G, I, D], scaled: the heads that read one state lie side by side."""
    heads: Tensor = call.q.to(dtype).unflatten(1, (call.k.shape[1], -1))
    return heads * call.scale


def _unread(call: Call, layout: Layout, q: Tensor) -> Tensor:
    """Zeros for the query rows that stand before the first key."""
    before = min(max(-layout.offset, 0), layout.rows)
    return q.new_zeros((*q.shape[:3], before, call.v.shape[-1]))


def _starts_document(layout: Layout, j: int) -> Tensor | None:
    """[B, 1, 1, 1]: where key j begins a document, before which the state is emptied."""
    if layout.document is None or j == 0:
        return None
    return (layout.document[..., j] != layout.document[..., j - 1])[..., None, None]


def _step(state: Tensor, one: _Stream, fresh: Tensor | None) -> Tensor:
    """S_j from S_{j−1} and a stream of one key."""
    state = state if fresh is None else state.masked_fill(fresh, 0.0)
    state = state * one.decay.exp()
    return state + one.k.mT @ (one.beta * (one.v - one.k @ state))


@dataclass(frozen=True, eq=False)
class _Chunk:
    """A chunk of C keys against the state before it: keys [.., C, D], u [.., C, E], what remains at key i of what
    key j wrote (`kept` [.., C, C], lower triangle) and of the state before (`carried` [.., C, 1])."""

    keys: Tensor
    u: Tensor
    kept: Tensor
    carried: Tensor

    def read(self, q: Tensor, at: Tensor, state: Tensor) -> Tensor:
        """q [B, G, H/G, R, D] reading after keys `at` [R] of the chunk -> [B, G, H/G, R, E]."""
        kept, carried = self.kept[:, :, None, at], self.carried[:, :, None, at]
        scores = (q @ self.keys.unsqueeze(2).mT) * kept
        return carried * (q @ state.unsqueeze(2)) + scores @ self.u.unsqueeze(2)

    def after(self, state: Tensor) -> Tensor:
        """The state after the chunk's last key."""
        return self.carried[:, :, -1:] * state + self.keys.mT @ (self.kept[:, :, -1].unsqueeze(-1) * self.u)


def _solved(part: _Stream, layout: Layout, lo: int, hi: int, state: Tensor) -> _Chunk:
    total = part.decay.cumsum(2)  # log of what remains since the chunk began [B, G, C, 1]
    size = torch.ones((hi - lo, hi - lo), dtype=torch.bool, device=total.device)
    alive, carries = size.tril(), None
    if layout.document is not None:
        own = layout.document[..., lo:hi]  # [B, 1, C]
        alive = alive & (own.unsqueeze(-1) == own.unsqueeze(-2))
        carries = (own == layout.document[..., max(lo - 1, 0), None]).unsqueeze(-1)
    kept = (total - total.mT).masked_fill(~alive, float("-inf")).exp()
    carried = total.exp() if carries is None else total.exp().masked_fill(~carries, 0.0)
    erased = (part.k @ part.k.mT) * kept * part.beta  # its diagonal is not read
    wanted = part.beta * (part.v - carried * (part.k @ state))
    u = torch.linalg.solve_triangular(erased, wanted, upper=False, unitriangular=True)
    return _Chunk(part.k, u, kept, carried)
