"""local-attention 1.11 (P. Wang): sliding-window attention by buckets, each against the one before (and after).

Asked for exact windows, which hold window_size keys on a side beside the query's own: it is given window − 1. Causal,
or without a causal mask where window − 1 divides the length: its automatic padding is attended to otherwise. Options as
`sliding_window`, after Beltagy et al. 2020, arXiv 2004.05150.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Run, Support
from attention_impls.makers import patterned
from attention_impls.needs import package
from attention_impls.peers import imported, keys_within, no_empty_batch, out_only
from attention_impls.variants.sparse import sliding_window

LIBRARY = "local_attention"


def _local(window: int, call: Call, lse: bool) -> Run:
    mask = call.mask.to(call.q.device)
    within, causal = keys_within(mask), mask.causal
    attend = imported(LIBRARY).LocalAttention(
        window_size=window - 1,
        causal=causal,
        look_backward=1,
        look_forward=0 if causal else 1,
        exact_windowsize=True,
        autopad=True,
        scale=call.scale,
        use_rotary_pos_emb=False,
    )

    def run(call: Call) -> Tensor:
        out: Tensor = attend(call.q, call.k, call.v, mask=within)
        return out

    return out_only(run)


def _why_not(window: int, call: Call) -> str | None:
    tokens = call.q.shape[2]
    if window < 2:
        return "needs a window of at least 2: its own counts the keys beside the query's"
    if not call.mask.causal and tokens % (window - 1):
        return f"attends to its padding without a causal mask: {tokens} tokens are no multiple of {window - 1}"
    if patterned(call, sliding_window.near(window)).mask.has_empty_rows:
        return "is not right for queries whose window holds no key"
    return no_empty_batch(call)


def implementations(window: int = 256) -> list[Implementation]:
    """The one kernel, for one window. Raises ValueError for a window below 1."""
    variant = sliding_window.implementations(window)[0].variant
    support = Support(
        masks=frozenset({"full", "causal", "key_lengths"}),
        starts=frozenset({"zero"}),
        grouped_heads=False,
        cross=False,
        needs=(package(LIBRARY, "local-attention"),),
        why_not=partial(_why_not, window),
    )
    return [Implementation(LIBRARY, variant, partial(_local, window), support, growth=Growth(1, 1, "window fixed"))]
