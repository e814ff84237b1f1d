"""entmax 1.3 (DeepSPIN): its maps of logits to sparse weights, with both products of attention around them.

Sorting for sparsemax (Martins & Astudillo 2016, arXiv 1602.02068) and 1.5-entmax, bisection for both (Peters, Niculae,
Martins 2019, arXiv 1905.05702). Hidden keys are logits of -inf; a row of them is no number: refused.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads
from attention_impls.contract import MASK_WORDS, POLICY, Implementation, Run, Support, Variant
from attention_impls.needs import package
from attention_impls.peers import Why, imported, out_only
from attention_impls.variants.scores.entmax import implementations as entmax
from attention_impls.variants.scores.entmax15 import IMPLEMENTATIONS as ENTMAX15

LIBRARY = "entmax"


def _weighted(function: str, settings: dict[str, float], call: Call, lse: bool) -> Run:
    normalise = partial(getattr(imported(LIBRARY), function), dim=-1, **settings)
    visible, heads = call.mask.simplified().to(call.q.device).visible(), call.q.shape[1]

    def run(call: Call) -> Tensor:
        logits = hide(call.q @ repeat_heads(call.k, heads).mT * call.scale, visible)
        out: Tensor = normalise(logits) @ repeat_heads(call.v, heads)
        return out

    return out_only(run)


def _loses(call: Call) -> str | None:
    half = call.q.dtype.itemsize < 4
    return f"{POLICY}its sums of sorted squares lose too much in half precision" if half else None


def _entry(variant: Variant, name: str, function: str, why_not: Why | None = None, **settings: float) -> Implementation:
    support = Support(masks=MASK_WORDS - {"empty_rows"}, needs=(package(LIBRARY, "entmax"),), why_not=why_not)
    return Implementation(name, variant, partial(_weighted, function, settings), support)


SPARSEMAX, HALF_WAY = entmax()[0].variant, ENTMAX15[0].variant

IMPLEMENTATIONS = [
    _entry(SPARSEMAX, "entmax_sorted", "sparsemax"),
    _entry(SPARSEMAX, "entmax_bisection", "entmax_bisect", alpha=2.0),
    _entry(HALF_WAY, "entmax_sorted", "entmax15", _loses),
    _entry(HALF_WAY, "entmax_bisection", "entmax_bisect", alpha=1.5),
]
