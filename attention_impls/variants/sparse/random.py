"""Random sparse attention: exact softmax attention to the own key and to others that were drawn once for each position.

columns [keys - 1, N]: position i sees key position i and the positions columns[:, i], under the mask; what is drawn
twice counts once. N holds the longer of queries and keys. The columns are a constant, the same for all heads; those
drawn here are without repetition and never the own key, from all N positions, so that under a causal mask the later
ones are lost. Exact attention of its mask; over many draws an estimate of `softmax` in no useful sense. With `keys` of
at least N it is `softmax`. Source: the random part of Zaheer et al. 2020, "Big Bird", arXiv 2007.14062, there
in blocks (`bigbird`). Option: keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attention_impls.call import Call, hide
from attention_impls.contract import Growth, Implementation, Parameter, Workload
from attention_impls.gathered import Cover, blocks, lay, masked_by, tiled_by_block
from attention_impls.makers import softmax_of
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked, spans


def _kept(call: Call, rows: Tensor) -> Tensor:
    """Bool [1|B, 1, R, J]: the own key and those drawn, one draw after another."""
    columns = call.parameters["columns"]
    i = call.mask.q_positions(rows.to(columns.device)).view(-1, 1, len(rows), 1)
    j = call.mask.k_start + torch.arange(call.k.shape[2], device=columns.device)
    kept = i == j
    for drawn in columns:
        kept = kept | (drawn[i.clamp(0, len(drawn) - 1)] == j)
    return kept


def _logits(call: Call, rows: Tensor) -> Tensor:
    return hide(call.q[:, :, rows] @ call.k.mT * call.scale, _kept(call, rows))


def _marked(call: Call) -> Tensor:
    """As `_kept`, of all rows, by writing marks; those of positions that the call does not have fall off the end."""
    columns, keys = call.parameters["columns"], call.k.shape[2]
    rows = torch.arange(call.q.shape[2], device=columns.device)
    i = call.mask.q_positions(rows).view(-1, 1, len(rows), 1)
    drawn = columns.mT[i.squeeze(3).clamp(0, columns.shape[1] - 1)]  # [1|B, 1, I, C]
    at = torch.cat([i, drawn], 3) - call.mask.k_start
    at = at.masked_fill((at < 0) | (at >= keys), keys)
    marks = torch.zeros((*at.shape[:3], keys + 1), dtype=torch.bool, device=at.device)
    return marks.scatter_(3, at, True)[..., :keys]


def _plan(block: int, call: Call) -> Sequence[Cover]:
    """A tile a query, `block` of them gathered together; a key that was drawn twice is sent out of the call."""
    columns, outside = call.parameters["columns"], call.mask.k_start - 1
    queries = blocks(call, call.mask.q_len, aligned=False).mT  # [I, 1]
    drawn = columns[:, queries.squeeze(1).clamp(0, columns.shape[1] - 1)].mT
    keys = torch.cat([queries, drawn], 1).sort(1).values
    again = torch.cat([torch.zeros_like(queries, dtype=torch.bool), keys[:, 1:] == keys[:, :-1]], 1)
    keys = keys.masked_fill(again, outside)
    return [[lay(call.mask, queries[lo:hi], keys[lo:hi]) for lo, hi in spans(len(queries), block)]]


def _draw(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """[C, N] of C different positions of N, none of them the own: Floyd's way to draw without repetition."""
    count, tokens = shape
    drawn = torch.zeros(shape, dtype=torch.long)
    for c in range(count):
        top = tokens - 1 - count + c  # the others are numbered 0 … N - 2
        one = torch.randint(0, top + 1, (tokens,), generator=generator)
        drawn[c] = torch.where((drawn[:c] == one).any(0), top, one)
    return drawn + (drawn >= torch.arange(tokens))


def implementations(keys: int = 64) -> list[Implementation]:
    """All forms for `keys` keys a query, its own among them. Raises ValueError below 1."""
    checked("keys", keys)

    def longer(workload: Workload) -> int:
        return max(workload.q_len, workload.kv_len)

    sizes = {"N": longer, "C": lambda workload: min(keys, longer(workload)) - 1}
    variant = softmax_of(
        "random",
        _logits,
        parameters={"columns": Parameter("C N", "constant", draw=_draw, sizes=sizes, dtype="int64")},
        paper="Zaheer et al. 2020, arXiv 2007.14062",
        formula="A = softmax(scale · q kᵀ) over the own key and keys - 1 drawn ones",
        cost="time and, with gradients, memory O(I·keys·(D+E)); forward memory O(keys·(I + block·(D+E))); O(I·J) dense",
    )

    dense = masked_by(variant, _marked, softmax_kernel("naive"), softmax_kernel("sdpa_flash"))
    return [*dense, tiled_by_block("gathered", variant, _plan, growth=Growth(1, 1, "keys a query fixed"))]
