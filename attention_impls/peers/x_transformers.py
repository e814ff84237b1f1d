"""x-transformers 2.31 (P. Wang): its `Attend`, the attention of its models, materialised or by torch's fused one.

Masks go in as [1|B, 1|H, I, J] booleans, but for the causal one, whose corner there is the bottom-right one; a row that
a passed mask hides gives zeros. Materialised, the softmax is made in float32 whatever the dtype. With `flash` torch
chooses among its own back-ends. Query heads read key/value head h mod G. The soft cap is put before the mask, as in
Gemma 2 (Gemma Team 2024, arXiv 2408.00118); the fused form has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Run, Support, Variant
from attention_impls.mask import Mask
from attention_impls.needs import package
from attention_impls.peers import imported, out_only, tiled_heads
from attention_impls.variants.scores.softcap import implementations as softcap
from attention_impls.variants.scores.softmax import SOFTMAX

LIBRARY = "x_transformers"
NARROW = frozenset({"f32", "tf32", "f16", "bf16"})


def _attend(settings: dict[str, Any], call: Call, lse: bool) -> Run:
    mask = call.mask.simplified().to(call.q.device)
    causal = _bottom_right(mask)
    attend = imported(f"{LIBRARY}.attend").Attend(causal=causal, scale=call.scale, **settings)
    visible = None if causal else mask.visible()

    def run(call: Call) -> Tensor:
        out: Tensor = attend(call.q, call.k, call.v, mask=visible)[0]
        return out

    return out_only(run)


def _bottom_right(mask: Mask) -> bool:
    """True where its own causal mask says exactly what ours says."""
    standing = mask.q_start == mask.k_start + mask.kv_len - mask.q_len if isinstance(mask.q_start, int) else False
    return mask.kinds() == {"causal"} and standing and mask.kv_len >= mask.q_len


def _entry(variant: Variant, name: str, dtypes: Iterable[str], **settings: Any) -> Implementation:
    support = Support(dtypes=frozenset(dtypes), needs=(package(LIBRARY, "x-transformers"),), why_not=tiled_heads)
    growth = Growth(bytes=1) if settings.get("flash") else None
    return Implementation(name, variant, partial(_attend, settings), support, growth=growth)


SOFTCAP = softcap()[0].variant

IMPLEMENTATIONS = [
    _entry(SOFTMAX, LIBRARY, NARROW),
    _entry(SOFTMAX, f"{LIBRARY}_flash", NARROW | {"f64"}, flash=True),
    _entry(SOFTCAP, LIBRARY, NARROW, softclamp_logits=True, logit_softclamp_value=50.0),
]
