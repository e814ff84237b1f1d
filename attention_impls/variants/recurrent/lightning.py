"""Lightning attention: linear attention without a denominator whose state fades at ALiBi's slopes, tiled.

S_j = e^(−s_h) S_{j−1} + k_j v_jᵀ [D, E];  out_i = scale · q_iᵀ S_i, scale = 1. As a matrix
A_ij = scale · q_i·k_j e^(−s_h (i−j)). s_h are the slopes of ALiBi, 2^(−8h/H): a constant [G] of the key/value heads,
handed over as log-decays −s_h. A hidden key is as if it were not there. Rows need not sum to 1. Causal only.

Sources: Qin et al. 2023, "TransNormerLLM", arXiv 2307.14995; Qin et al. 2024, "Lightning Attention-2", arXiv
2401.04658, whose blocks (products of queries and keys inside, the state between) are the chunkwise form. SiLU on q, k
and v, the norm and the gate belong to the layer, and so does the factor that lowers the slopes from layer to layer:
these are those of the first one. With the decays of `retention` it is retention without a scale.
"""

from __future__ import annotations

from torch import Generator, Tensor

from attention_impls.contract import Parameter, Variant
from attention_impls.decayed import Decayed, faster, per_head, scale_one
from attention_impls.states import CHUNK, MASKS, causal_only, forms
from attention_impls.variants.positional.alibi import slopes
from attention_impls.variants.recurrent.retention import fading_weights


def draw_decay(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """The constants −s_h: nothing is drawn."""
    return -slopes(shape[0])


RULE = Decayed(per_head, CHUNK)

LIGHTNING = Variant(
    "lightning",
    weights=fading_weights,
    oracle=faster(RULE, fading_weights),
    parameters={"decay": Parameter("G", "constant", draw=draw_decay, dtype="float32")},
    couples=frozenset({"keys"}),
    masks=MASKS,
    row_stochastic=False,
    scale=scale_one,
    why_not=causal_only("lightning"),
    paper="Qin et al. 2023, arXiv 2307.14995; Qin et al. 2024, arXiv 2401.04658",
    formula="S_j = e^(−s_h) S_{j−1} + k_j v_jᵀ, out_i = scale · q_iᵀ S_i; s_h = 2^(−8h/H), scale = 1",
    cost="time O((I+J)·D·E), chunkwise also O(J·C·(D+E)), parallel O(I·J·(D+E)); state D·E a key/value head",
)

IMPLEMENTATIONS = forms(LIGHTNING, RULE)
