"""One element at a time: the weights of a mechanism whose logit depends on where query and key stand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_impls.call import Call
from attention_impls.tests.score_loops import seen_by_loop
from attention_impls.tests.variant_steps import softmax_loop

Logit = Callable[[int, int, int, np.ndarray, np.ndarray], float]
"""(head, query position i, key position j, one query [D], one key [D]) -> its logit."""


def weights_by_position(call: Call, logit: Logit) -> np.ndarray:
    """Softmax over the seen keys [B, H, I, J]; positions start at the mask's q_start, keys at 0."""
    q, k, seen = call.q.numpy(), call.k.numpy(), seen_by_loop(call)
    assert isinstance(call.mask.q_start, int)
    assert call.mask.k_start == 0
    weights = np.zeros(seen.shape)
    for b, h, r in np.ndindex(*q.shape[:3]):
        i, keys = call.mask.q_start + r, k[b, h * k.shape[1] // q.shape[1]]
        weights[b, h, r] = softmax_loop(
            np.array([logit(h, i, j, q[b, h, r], key) for j, key in enumerate(keys)]), seen[b, h, r]
        )
    return weights
