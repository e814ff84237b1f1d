"""What formulas of bytes are made of, and how those of a call in parts come from those of its parts. Float32 only.

S: scores [B, H, I, J]. O: an output [B, H, I, E]. L: a number a query [B, H, I]. X: tokens [B, I, M] of a layer. A
Python number that becomes a tensor on its way takes 4 bytes, or 8 where it is kept for a backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attention_impls.contract import UNKNOWN, Footprint, Workload

F32 = 4
SCALAR, KEPT_SCALAR = 4, 8
RNG_STATE = 5056  # torch's CPU random state, which a checkpoint keeps so that it can put it back


def scores(w: Workload) -> int:
    """S in bytes."""
    return F32 * w.batch * w.heads * w.q_len * w.kv_len


def output(w: Workload) -> int:
    """O in bytes."""
    return F32 * w.batch * w.heads * w.q_len * w.value_dim


def per_query(w: Workload) -> int:
    """L in bytes."""
    return F32 * w.batch * w.heads * w.q_len


def tokens(w: Workload) -> int:
    """X in bytes."""
    return F32 * w.batch * w.q_len * w.heads * w.head_dim


def recomputed(w: Workload) -> int:
    """What a recomputed forward holds: its output, the random state, and a scalar."""
    return output(w) + RNG_STATE + KEPT_SCALAR


def side_by_side(inner: Footprint, cut: Callable[[Workload], Sequence[Workload]]) -> Footprint:
    """The peak of parts written side by side: any part above the outputs before it, or parts and whole when joined."""
    peak = inner.peak
    if peak is None:
        return UNKNOWN

    def joined(w: Workload) -> int:
        done, worst, parts = 0, 0, cut(w)
        for part in parts:
            worst = max(worst, done + peak(part))
            done += output(part)
        return max(worst, 2 * done)  # cat copies even a single part

    return Footprint(peak=joined)
