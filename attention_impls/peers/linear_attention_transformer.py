"""linear-attention-transformer 0.19 (P. Wang): efficient attention, unmasked or padded.

After Shen et al. 2018, arXiv 1812.01243. Its output is that of the definition over √D: it is multiplied back. It
writes its mask into k and v: it is given copies where there is one. Its causal form, which leaves out a query's own
bucket, is a function of its own and not asked.
"""

from __future__ import annotations

import math

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Run, Support
from attention_impls.needs import package
from attention_impls.peers import imported, keys_within, out_only, some_heads_shared
from attention_impls.variants.linear.efficient import EFFICIENT

LIBRARY = "linear_attention_transformer"


def _linear(call: Call, lse: bool) -> Run:
    kernel = imported(f"{LIBRARY}.linear_attention_transformer").linear_attn
    within, root = keys_within(call.mask.simplified().to(call.q.device)), math.sqrt(call.q.shape[-1])
    if within is None:
        return out_only(lambda call: kernel(call.q, call.k, call.v) * root)
    return out_only(lambda call: kernel(call.q, call.k.clone(), call.v.clone(), within) * root)


IMPLEMENTATIONS = [
    Implementation(
        LIBRARY,
        EFFICIENT,
        _linear,
        Support(
            masks=frozenset({"full", "key_lengths", "empty_rows"}),
            value_dim=False,
            needs=(package(LIBRARY, "linear-attention-transformer"),),
            why_not=some_heads_shared,
        ),
        growth=Growth(1, 1),
    )
]
