"""Block-sparse attention: exact softmax attention of the pairs that a layout of blocks leaves, for each head its own.

layout [H, N, N] bool: a query in block ⌊i / block⌋ sees a key in block ⌊j / block⌋ where the layout says so; positions
are the mask's absolute ones, N blocks hold the longer of queries and keys. The layout is a constant, any one will do;
the one drawn here has the diagonal and each other block with probability `density`. A layout of ones is `softmax`.
Sources: Child et al. 2019, arXiv 1904.10509; Gray, Radford, Kingma 2017, "GPU Kernels for Block-Sparse Weights".
Options: block, density.

The kernel `blocks` moves whole blocks. Rows of the layout, of all heads, are grouped by how many blocks they leave, and
those with the same number are one batched product: nnz · block² scores, nothing padded up to the fullest row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_impls.call import Call, hide, lse_rows, softmax_rows
from attention_impls.contract import Growth, Implementation, Output, Parameter, Run, Variant, Workload
from attention_impls.gathered import SUPPORT, first_query, masked_by
from attention_impls.makers import softmax_of
from attention_impls.mask import Mask
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked


def kept(block: int, call: Call, rows: Tensor) -> Tensor:
    """Bool [1|B, H, R, J]: which pairs the layout leaves."""
    layout, device = call.parameters["layout"], call.parameters["layout"].device
    last = layout.shape[-1] - 1
    i = call.mask.q_positions(rows.to(device)) // block
    j = (call.mask.k_start + torch.arange(call.k.shape[2], device=device)) // block
    h = torch.arange(layout.shape[0], device=device).view(-1, 1, 1)
    return layout[h, i.view(-1, 1, len(rows), 1).clamp(0, last), j.clamp(0, last)]


def _logits(block: int, call: Call, rows: Tensor) -> Tensor:
    return hide(call.q[:, :, rows] @ call.k.mT * call.scale, kept(block, call, rows))


def of_layout(
    name: str, block: int, draw: Callable[[torch.Generator, tuple[int, ...]], Tensor], **facts: str
) -> Variant:
    """The variant of layouts drawn by `draw` from a generator and their shape [H, N, N]."""

    def size(workload: Workload) -> int:
        return -(-max(workload.q_len, workload.kv_len) // block)

    layout = Parameter("H N M", "constant", draw=draw, sizes={"N": size, "M": size}, dtype="bool")
    return softmax_of(name, partial(_logits, block), parameters={"layout": layout}, **facts)


def kernels(variant: Variant, block: int, growth: Growth | None = None) -> list[Implementation]:
    """All forms of a variant made by `of_layout`; `growth` is claimed of the one that computes live blocks only."""

    def whole(call: Call) -> Tensor:
        return kept(block, call, torch.arange(call.q.shape[2], device=call.q.device))

    dense = masked_by(variant, whole, softmax_kernel("naive"), softmax_kernel("sdpa_flash"))
    return [*dense, Implementation("blocks", variant, partial(_prepared, block), SUPPORT, growth=growth)]


@dataclass(frozen=True, eq=False)
class _Group:
    """T rows of the layout that leave the same number of blocks C: queries [T] and keys [T, C] count the blocks of all
    heads one after another; seen [1|B, T, block, C·block], None when every pair counts."""

    queries: Tensor
    keys: Tensor
    seen: Tensor | None


@dataclass(frozen=True, eq=False)
class _Plan:
    """fill: zeros before the first query and key, up to a border of blocks. order [H·I]: where each row is in the
    groups' rows."""

    fill: tuple[int, int]
    groups: list[_Group]
    order: Tensor


def _planned(block: int, call: Call) -> _Plan:
    mask, layout = call.mask.to(call.q.device), call.parameters["layout"]
    first, heads = first_query(mask), call.q.shape[1]
    q_block, k_block = first // block, mask.k_start // block
    fill = first - q_block * block, mask.k_start - k_block * block
    rows, columns = (-(-(f + n) // block) for f, n in zip(fill, (mask.q_len, mask.kv_len), strict=True))
    i = torch.arange(q_block, q_block + rows, device=layout.device)
    j = torch.arange(k_block, k_block + columns, device=layout.device)
    last = layout.shape[-1] - 1
    live = layout[:, i.clamp(0, last)][:, :, j.clamp(0, last)]  # [H, rows, columns]
    if mask.causal:
        live = live & (j * block < (i[:, None] + 1) * block)
    counts, group = live.flatten(0, 1).sum(1), heads // call.k.shape[1]
    groups, found = [], []
    for count in counts.unique().tolist():
        at = (counts == count).nonzero().squeeze(1)  # h · rows + block of queries
        keys = live.flatten(0, 1)[at].nonzero()[:, 1].view(len(at), count)
        seen = _seen(mask, block, at // rows, at % rows * block - fill[0], keys * block - fill[1])
        groups.append(_Group(at, keys + (at // rows // group * columns)[:, None], seen))
        found.append(at)
    place = torch.cat(found).argsort().view(heads, rows, 1) * block + torch.arange(block, device=layout.device)
    return _Plan(fill, groups, place.flatten(1)[:, fill[0] : fill[0] + mask.q_len].flatten())


def _seen(mask: Mask, block: int, heads: Tensor, rows: Tensor, columns: Tensor) -> Tensor | None:
    """[1|B, T, block, C·block] for blocks that begin at rows [T] and columns [T, C] of the call."""
    step = torch.arange(block, device=rows.device)
    c = (columns[..., None] + step).flatten(1)[:, None]  # [T, 1, C·block]
    r = (rows[:, None] + step)[..., None]  # [T, block, 1]
    inside = (c >= 0) & (c < mask.kv_len)
    b = torch.arange(mask.shape[0], device=rows.device).view(-1, 1, 1, 1)
    h = heads.clamp_max(mask.shape[1] - 1)[:, None, None]
    seen = inside & mask.allows(b, h, r.clamp(0, mask.q_len - 1), c.clamp(0, mask.kv_len - 1))
    return None if bool(seen.all()) else seen


def _prepared(block: int, call: Call, lse: bool) -> Run:
    plan = _planned(block, call)

    def in_order(x: Tensor, call: Call) -> Tensor:
        """[B, T, block, E] of all groups -> [B, H, I, E]."""
        ordered: Tensor = x.flatten(1, 2).index_select(1, plan.order).unflatten(1, call.q.shape[1:3])
        return ordered

    def run(call: Call) -> Output:
        q, k, v = (_in_blocks(x, plan.fill[n > 0], block) for n, x in enumerate((call.q, call.k, call.v)))
        parts = [_attended(q, k, v, group, call.scale, lse) for group in plan.groups]
        out = in_order(torch.cat([part.out for part in parts], 1), call)
        if not lse:
            return Output(out)
        total = torch.cat([part.lse for part in parts if part.lse is not None], 1)
        return Output(out, in_order(total.unsqueeze(-1), call).squeeze(-1))

    return run


def _in_blocks(x: Tensor, fill: int, block: int) -> Tensor:
    """[B, G, N, D] with `fill` zeros before it -> [B, blocks of all heads, block, D]."""
    length = fill + x.shape[2]
    blocks: Tensor = pad(x, (0, 0, fill, -length % block)).unflatten(2, (-(-length // block), block)).flatten(1, 2)
    return blocks


def _attended(q: Tensor, k: Tensor, v: Tensor, group: _Group, scale: float, lse: bool) -> Output:
    """Softmax attention of one group's blocks of queries, each against its own blocks of keys side by side."""
    mine, shape = q.index_select(1, group.queries), (*group.keys.shape, *k.shape[2:3])
    keys, values = (x.index_select(1, group.keys.flatten()).unflatten(1, shape[:2]).flatten(2, 3) for x in (k, v))
    logits = hide(mine @ keys.mT * scale, group.seen)  # [B, T, block, C·block]
    return Output(softmax_rows(logits) @ values, lse_rows(logits) if lse else None)


def _draw(density: float, generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    drawn = torch.rand(shape, generator=generator) < density
    return drawn | torch.eye(*shape[1:], dtype=torch.bool)


def implementations(block: int = 64, density: float = 0.25) -> list[Implementation]:
    """All forms for one size of block. Raises ValueError for a block below 1 or a density outside (0, 1]."""
    if not 0.0 < density <= 1.0:
        raise ValueError(f"option density must be a share of the blocks in (0, 1]; got {density}")
    variant = of_layout(
        "block_sparse",
        checked("block", block),
        partial(_draw, density),
        paper="Child et al. 2019, arXiv 1904.10509",
        formula="A = softmax(scale · q kᵀ) over the keys of the blocks that the head's layout leaves",
        cost="time and memory O(live blocks · block²) in blocks, O(I·J) with a dense mask",
    )
    return kernels(variant, block)
