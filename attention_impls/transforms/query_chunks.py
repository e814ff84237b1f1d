"""`query_chunks:C`: C query rows at a time against the keys they can see.

Memory for scores falls from I·J to C·J while there is no backward; with one, what each part saves is
still held, so that training memory only falls together with recompute. Keys behind the last one that a part
can see are left out, which halves the work of a causal call.
Bytes over `naive`: the scores of C rows twice (2·H·C·J) above the parts done before, or twice the output when joined.
Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory", arXiv 2112.05682 (query chunks).
"""

from __future__ import annotations

from dataclasses import replace

from attention_impls.call import Call
from attention_impls.chunking import Bounds, Part, bounds, cat_along, chunk_size, chunked, sizes, was_cut
from attention_impls.contract import POLICY, Implementation, Transform
from attention_impls.footprint import side_by_side

LABEL = "query_chunks"


def _wrap(inner: Implementation, argument: str | None) -> Implementation:
    size, variant = chunk_size(LABEL, argument), inner.variant
    trims = "keys" not in variant.couples

    def part(call: Call, rows: Bounds) -> Part:
        if not trims:
            return Part(rows=rows)
        end = max(1, call.mask.rows(*rows).last_visible())  # a part that sees nothing keeps one hidden key
        return Part(rows=rows, keys=(0, end) if end < call.k.shape[2] else None)

    def refuses(call: Call, direction: str) -> str | None:
        if "queries" in variant.couples and call.q.shape[2] > size:
            return f"{variant.name} couples queries: a row depends on other rows, so rows cannot be taken apart"
        if not trims and variant.join == "none" and "full" not in variant.masks:
            return f"{POLICY}{variant.name} is a recurrence over keys: every chunk would begin again at the first key"
        return None

    return chunked(
        inner,
        LABEL,
        split=lambda call: [part(call, rows) for rows in bounds(call.q.shape[2], size)],
        join=cat_along(2),
        refuses=refuses,
        footprint=side_by_side(inner.footprint, lambda w: [replace(w, q_len=rows) for rows in sizes(w.q_len, size)]),
    )


TRANSFORM = Transform(
    label=LABEL,
    doc="query rows C at a time, each chunk against the keys it can see",
    aims_at="memory",
    wrap=_wrap,
    applied=was_cut(LABEL),
    example="8",
)
