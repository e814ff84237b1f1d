"""softmax.varlen and softmax.varlen_flash: every document on its own, Σ n_i² scores for documents of n_i tokens.

Exact. Sequences of a batch, and documents packed into one sequence, are runs of rows and keys with bounds (the
cu_seqlens of flash-attention); a run's queries meet its own keys only, cut off behind the last that is visible,
so padding and pairs of different documents are never computed. varlen takes the naive form inside a document,
varlen_flash torch's fused one. A batch without documents or padding is one document a sequence: right, and no
faster. The documents of a sequence must be runs: one whose tokens lie apart is refused.

Source: Dao et al. 2022, FlashAttention, arXiv 2205.14135, whose library has the variable-length interface.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_impls.call import Call, wide
from attention_impls.contract import Implementation, Output, Run
from attention_impls.mask import Mask
from attention_impls.running import nothing
from attention_impls.through import softmax_kernel


@dataclass(frozen=True, eq=False)
class Document:
    """Rows and key columns of one document of sequence `b`, and the mask between them."""

    b: int
    rows: tuple[int, int]
    keys: tuple[int, int]
    mask: Mask

    def of(self, call: Call) -> Call:
        """The document's part of a call, as a call."""
        (lo, hi), (first, last), b = self.rows, self.keys, slice(self.b, self.b + 1)
        q, k, v = call.q[b, :, lo:hi], call.k[b, :, first:last], call.v[b, :, first:last]
        return replace(call, q=q, k=k, v=v, mask=self.mask)


def documents(mask: Mask, batch: int) -> list[Document]:
    """Every document of every sequence, in the order of their rows. Raises ValueError for one that lies apart."""
    return [document for b in range(batch) for document in _of_sequence(mask.batch(b), b)]


def _of_sequence(mask: Mask, b: int) -> Iterator[Document]:
    rows, keys = {0: (0, mask.q_len)}, {0: (0, mask.kv_len)}
    if mask.q_segments is not None and mask.k_segments is not None:
        rows, keys = _runs(mask.q_segments[0]), _runs(mask.k_segments[0])
    for name, (lo, hi) in rows.items():
        first, last = keys.get(name, (0, 0))
        part = mask.rows(lo, hi).keys(first, last)
        last = first + part.last_visible()
        yield Document(b, (lo, hi), (first, last), mask.rows(lo, hi).keys(first, last).simplified())


def _runs(segments: Tensor) -> dict[int, tuple[int, int]]:
    """Document -> the bounds of its run of tokens."""
    names, counts = torch.unique_consecutive(segments, return_counts=True)
    ends = counts.cumsum(0).tolist()
    runs = dict(zip(names.tolist(), zip([0, *ends[:-1]], ends, strict=True), strict=True))
    if len(runs) != len(names):
        raise ValueError("needs every document's tokens side by side; one of them lies in several runs")
    return runs


def _varlen(name: str, inner: Implementation) -> Implementation:
    def prepare(call: Call, lse: bool) -> Run:
        found = documents(call.mask.simplified().to(call.q.device), call.q.shape[0])
        kernels = [(d, _kernel(d, call, inner, lse)) for d in found]
        return lambda call: _side_by_side(call, [(d, run(d.of(call))) for d, run in kernels])

    def refusal(call: Call, direction: str) -> str | None:
        try:
            found = documents(call.mask.simplified(), call.q.shape[0])
        except ValueError as lies_apart:
            return str(lies_apart)
        asked = (inner.refuses(d.of(call), direction) for d in found if d.mask.kv_len)
        return next((reason for reason in asked if reason), None)

    return replace(inner, name=name, prepare=prepare, refusal=refusal, configure=None)


def _kernel(document: Document, call: Call, inner: Implementation, lse: bool) -> Run:
    return inner.prepare(document.of(call), lse) if document.mask.kv_len else _without_keys


def _without_keys(call: Call) -> Output:
    """Zeros with gradients of zero and an lse of -inf, for rows that see nothing."""
    empty = nothing(call.q, call.v.shape[3])
    return Output(empty.values, wide(empty.anchor).squeeze(-1))


def _side_by_side(call: Call, answers: list[tuple[Document, Output]]) -> Output:
    """The documents' rows one after the other, then the sequences."""
    if not answers:
        return _without_keys(call)

    def joined(parts: list[tuple[int, Tensor]]) -> Tensor:
        sequences = range(call.q.shape[0])
        return torch.cat([torch.cat([part for b, part in parts if b == sequence], 2) for sequence in sequences])

    out = joined([(d.b, answer.out) for d, answer in answers])
    lses = [(d.b, answer.lse) for d, answer in answers if answer.lse is not None]
    return Output(out, joined(lses) if len(lses) == len(answers) else None)


IMPLEMENTATIONS = [
    _varlen("varlen", softmax_kernel("naive")),
    _varlen("varlen_flash", softmax_kernel("sdpa_flash")),
]
