"""Axial attention: tokens on a grid attend along their row and along their column, and the two are added.

Position p stands at row p // width, column p % width. A = softmax(scale · q kᵀ over visible keys of the own row)
+ softmax(scale · q kᵀ over visible keys of the own column): rows of A sum to 2 where both see a key. The
last row of the grid may be short. Source: Ho et al. 2019, "Axial Attention in Multidimensional
Transformers", arXiv 1912.12180, which alternates the axes from layer to layer; this is the form that sums both in one
layer, a single matrix on v. Option: width (the square root of the length makes it fastest). With a width of at
least the length, one row, it is `softmax` plus v itself, and so it is with width 1, one column.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_impls.call import Call, hide, repeat_heads, softmax_rows
from attention_impls.contract import Implementation, Output, Run, Support, Variant
from attention_impls.mask import Mask


def _axes(width: int, mask: Mask, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(same row, same column) of the grid, each [1|B, 1, R, J] bool and joined with what the mask allows."""
    i = mask.q_positions(rows).view(-1, 1, len(rows), 1)
    j = mask.k_start + torch.arange(mask.kv_len, device=rows.device)
    row, column = i // width == j // width, i % width == j % width
    visible = mask.visible(rows)
    return (row, column) if visible is None else (row & visible, column & visible)


def _two_softmaxes(logits: Tensor, axes: tuple[Tensor, Tensor]) -> Tensor:
    return softmax_rows(hide(logits, axes[0])) + softmax_rows(hide(logits, axes[1]))


def _weights(width: int, call: Call, rows: Tensor) -> Tensor:
    return _two_softmaxes(call.q[:, :, rows] @ call.k.mT * call.scale, _axes(width, call.mask, rows))


def _dense(width: int, call: Call, lse: bool) -> Run:
    """All pairs materialised, each axis hidden by a mask."""
    rows, heads = torch.arange(call.q.shape[2], device=call.q.device), call.q.shape[1]
    axes = _axes(width, call.mask.to(call.q.device), rows)

    def run(call: Call) -> Output:
        logits = call.q @ repeat_heads(call.k, heads).mT * call.scale
        return Output(_two_softmaxes(logits, axes) @ repeat_heads(call.v, heads))

    return run


def _grid(width: int, call: Call, lse: bool) -> Run:
    """Rows side by side, then columns side by side: height · width² and width · height² pairs of a whole grid."""
    tokens, heads = call.q.shape[2], call.q.shape[1]
    height = -(-tokens // width)
    places = torch.arange(height * width, device=call.q.device).view(height, width)  # [rows, columns]
    seen = [_seen(call.mask.to(call.q.device), line) for line in (places, places.mT)]

    def gridded(x: Tensor) -> Tensor:
        whole = pad(repeat_heads(x, heads), (0, 0, 0, height * width - tokens))
        return whole.view(*whole.shape[:2], height, width, x.shape[-1])

    def run(call: Call) -> Output:
        q, k, v = gridded(call.q), gridded(call.k), gridded(call.v)  # [B, H, rows, columns, D]
        along_rows = _along(q, k, v, seen[0], call.scale)
        along_columns = _along(q.transpose(2, 3), k.transpose(2, 3), v.transpose(2, 3), seen[1], call.scale)
        return Output((along_rows + along_columns.transpose(2, 3)).flatten(2, 3)[:, :, :tokens])

    return run


def _along(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Softmax attention inside each line: q, k [B, H, lines, tokens, D], seen [1|B, 1|H, lines, tokens, tokens]."""
    return softmax_rows(hide(q @ k.mT * scale, seen)) @ v


def _seen(mask: Mask, line: Tensor) -> Tensor:
    """[1|B, 1|H, lines, tokens, tokens]: which tokens of its line each one sees; places past the end see nothing."""
    r, c = line.unsqueeze(-1), line.unsqueeze(-2)
    inside = (r < mask.q_len) & (c < mask.q_len)
    r, c = r.clamp_max(mask.q_len - 1), c.clamp_max(mask.q_len - 1)
    b = torch.arange(mask.shape[0], device=line.device).view(-1, 1, 1, 1, 1)
    h = torch.arange(mask.shape[1], device=line.device).view(1, -1, 1, 1, 1)
    return inside & mask.allows(b, h, r, c)


def _not_from_zero(call: Call) -> str | None:
    """The grid form lays tokens out from position 0 on."""
    if isinstance(call.mask.q_start, Tensor) or call.mask.q_start or call.mask.k_start:
        return "lays the grid out from position 0: it takes no call that starts elsewhere"
    return None


def implementations(width: int = 32) -> list[Implementation]:
    """Both forms on a grid `width` columns wide. Raises ValueError for a width below 1."""
    if width < 1:
        raise ValueError(f"width must be at least 1; got {width}")
    variant = Variant(
        "axial",
        weights=partial(_weights, width),
        row_stochastic=False,
        paper="Ho et al. 2019, arXiv 1912.12180",
        formula="A = softmax over the own row of the grid + softmax over the own column",
        cost="time O(N·(width + N/width)·(D+E)), N^3/2 where width = √N; memory O(N·(width + N/width)); dense O(N²)",
    )
    grid = Support(cross=False, why_not=_not_from_zero)
    return [
        Implementation("dense", variant, partial(_dense, width)),
        Implementation("grid", variant, partial(_grid, width), grid),
    ]
