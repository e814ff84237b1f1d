"""`head_chunks:C`: C query heads at a time with the key/value heads that they read.

Scores of C heads live at once instead of H; memory stays quadratic in the length. Bytes over `naive`: 2·C·I·J above
the heads done before, or twice the output when joined.
"""

from __future__ import annotations

from dataclasses import replace

from attention_impls.call import Call
from attention_impls.chunking import Part, bounds, cat_along, chunk_size, chunked, sizes, was_cut
from attention_impls.contract import Implementation, Transform, Workload
from attention_impls.footprint import side_by_side

LABEL = "head_chunks"


def _wrap(inner: Implementation, argument: str | None) -> Implementation:
    size, variant = chunk_size(LABEL, argument), inner.variant

    def refuses(call: Call, direction: str) -> str | None:
        if "heads" in variant.couples:
            return f"{variant.name} couples heads: they cannot be taken apart"
        group = call.group
        if group % size and size % group:
            return (
                f"{size} heads at a time would cut through groups of {group} query heads that share keys; "
                f"take a divisor or a multiple of {group}"
            )
        return None

    def cut(w: Workload) -> list[Workload]:
        return [replace(w, heads=n, kv_heads=max(1, n * w.kv_heads // w.heads)) for n in sizes(w.heads, size)]

    return chunked(
        inner,
        LABEL,
        split=lambda call: [Part(heads=heads) for heads in bounds(call.q.shape[1], size)],
        join=cat_along(1),
        refuses=refuses,
        footprint=side_by_side(inner.footprint, cut),
    )


TRANSFORM = Transform(
    label=LABEL,
    doc="heads C at a time",
    aims_at="memory",
    wrap=_wrap,
    applied=was_cut(LABEL),
    example="2",
)
