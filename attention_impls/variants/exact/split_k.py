"""softmax.split_k: the keys in `parts` equal parts, all at once, each (out, lse) on its own, then joined by their lse.

Exact. What a part gives depends on no other: with few queries (decoding) the parts are what keeps a wide machine
busy, where the online form must go through the keys in turn. One batched product serves all parts; the at most
parts - 1 keys that are left over are a part of their own. Memory O(I·J) for scores: it is meant for few queries,
and computes hidden pairs too, but for keys past the last that any query sees. Keys are not copied.

Source: Dao, Haziza, Massa & Sizov 2023, "Flash-Decoding for long-context inference" (the split and its join).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attention_impls.call import Call, hide, merge_by_lse, wide
from attention_impls.contract import Implementation, Output, Run, Support
from attention_impls.mask import Mask
from attention_impls.running import absorb, closed, fold, nothing, unfold
from attention_impls.tiling import checked
from attention_impls.variants.scores.softmax import SOFTMAX


def split_k(parts: int = 8) -> Implementation:
    """softmax by `parts` parts of the keys. Raises ValueError below 1."""
    checked("parts", parts)

    def prepare(call: Call, lse: bool) -> Run:
        plan = _plan(call.mask.simplified().to(call.q.device), parts)

        def run(call: Call) -> Output:
            out, total = _joined(call, plan)
            return Output(out, total if lse else None)

        return run

    return Implementation("split_k", SOFTMAX, prepare, Support(lse="differentiable"), configure=split_k)


@dataclass(frozen=True, eq=False)
class _Cut:
    """Key columns lo..hi in `parts` equal parts; visible [1|B, 1|H, I, hi - lo], None when all of it is."""

    lo: int
    hi: int
    parts: int
    visible: Tensor | None


def _plan(mask: Mask, parts: int) -> list[_Cut]:
    """The equal parts together and, behind them, what is left over."""
    end = max(1, mask.last_visible())
    even = end // parts * parts
    cuts = ((0, even, parts), (even, end, 1))
    return [_Cut(lo, hi, n, mask.keys(lo, hi).visible()) for lo, hi, n in cuts if lo < hi]


def _joined(call: Call, plan: list[_Cut]) -> tuple[Tensor, Tensor]:
    heads = call.q.shape[1]
    queries = fold(call.q, call.k.shape[1]) * call.scale
    answers = [_attend(queries, call, cut) for cut in plan]
    outs = [unfold(part, heads) for out, _ in answers for part in out.unbind(2)]
    lses = [unfold(part, heads).squeeze(-1) for _, lse in answers for part in lse.unbind(2)]
    out, lse = merge_by_lse(outs, lses)
    return out.to(call.q.dtype), lse


def _attend(queries: Tensor, call: Call, cut: _Cut) -> tuple[Tensor, Tensor]:
    """out [B, G, P, H/G·I, E] and lse [B, G, P, H/G·I, 1] of the parts of one cut."""
    size = (cut.hi - cut.lo) // cut.parts
    k, v = (wide(t[:, :, cut.lo : cut.hi].unflatten(2, (cut.parts, size))) for t in (call.k, call.v))
    rows = queries.unsqueeze(2).expand(-1, -1, cut.parts, -1, -1)
    scores = rows @ k.mT  # [B, G, P, H/G·I, C]
    if cut.visible is not None:
        apart = scores.unflatten(3, (call.group, -1))
        scores = hide(apart, _by_part(cut, call.k.shape[1])).reshape(scores.shape)
    return closed(absorb(nothing(rows, v.shape[-1]), scores, v))


def _by_part(cut: _Cut, groups: int) -> Tensor:
    """The visible pairs [1|B, 1|H, I, P·C] as [1|B, 1|G, P, 1|H/G, I, C]."""
    assert cut.visible is not None  # narrows the type: asked only where something is hidden
    groups = groups if cut.visible.shape[1] > 1 else 1
    apart: Tensor = cut.visible.unflatten(3, (cut.parts, -1)).unflatten(1, (groups, -1))  # [1|B, 1|G, 1|H/G, I, P, C]
    return apart.movedim(4, 2)


IMPLEMENTATIONS = [split_k()]
