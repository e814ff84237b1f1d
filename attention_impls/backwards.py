"""Rows of A of a mechanism with a state, from the last key to the first: what remains of a query at each key.

With S_j = T_j S_{j−1} + w_j v_jᵀ and out_i = r_iᵀ S_i, the weight of key j is r·w_j, where r is r_i carried
backwards over the keys between: r ← T_lᵀ r. No state is formed. Plain, and apart from the kernels in
`attention_impls.states`: definitions are written with it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attention_impls.call import Call

Step = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""(r [B, H, R, D], key j) -> its weight r·w_j [B, H, R, 1] and T_jᵀ r [B, H, R, D]."""


def walked(call: Call, rows: Tensor, step: Step) -> Tensor:
    """Rows of A [B, H, R, J] of a call with heads expanded; a key that a row does not see is as if not there."""
    r = call.q[:, :, rows] * call.scale
    visible = call.mask.visible(rows)
    seen = torch.ones((1, 1, len(rows), call.k.shape[2]), dtype=torch.bool) if visible is None else visible
    columns = []
    for j in reversed(range(call.k.shape[2])):
        sees = seen[..., j, None]
        weight, after = step(r, j)
        columns.append(weight.masked_fill(~sees, 0.0))
        r = torch.where(sees, after, r)
    return torch.cat(columns[::-1], -1)


def own_key(call: Call, rows: Tensor, j: int) -> Tensor:
    """[1|B, 1, R, 1]: the rows that stand at key j."""
    at = call.mask.q_positions(rows)
    return at.view(-1, 1, len(rows), 1) == call.mask.k_start + j
