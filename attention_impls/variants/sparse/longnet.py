"""LongNet's dilated attention: segments that grow while their tokens thin out, mixed by their softmax denominators.

Branch b of `branches` has segments of w = segment · growth^b positions, of which head h takes every r-th, r = growth^b:
those with position mod r = h mod r, as queries and as keys. out_i = Σ_b α_b O_b over the branches that take i, O_b
softmax attention within its segment and α_b ∝ its denominator Σ_j exp(scale · q_i·k_j): so A_ij ∝ c_ij
exp(scale · q_i·k_j), where c_ij counts the branches that join i and j. Branch 0 takes every token. With one branch, or
growth 1, it is `block_diagonal`, and so with a segment of at least the length `softmax`.

Source: Ding et al. 2023, "LongNet", arXiv 2307.02486, where w_b and r_b are free but grow geometrically in all that is
reported. `head`, the number of each head, is a constant, for a part of the heads does not know it.
Options: segment, growth, branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, lse_rows, repeat_heads, softmax_rows
from attention_impls.contract import Growth, Implementation, Output, Parameter, Run, Support
from attention_impls.gathered import Cover, first_query, lay, tiled
from attention_impls.makers import softmax_of
from attention_impls.tiling import checked

Sizes = tuple[tuple[int, int], ...]
"""(w, r) of every branch."""


def _count(sizes: Sizes, call: Call, rows: Tensor) -> Tensor:
    """c [1|B, H, R, J]: how many branches join each query with each key."""
    head = call.parameters["head"].view(-1, 1, 1)
    i = call.mask.q_positions(rows.to(head.device)).view(-1, 1, len(rows), 1)
    j = call.mask.k_start + torch.arange(call.k.shape[2], device=head.device)
    joined = [(i // w == j // w) & ((i - head) % r == 0) & ((j - head) % r == 0) for w, r in sizes]
    return torch.stack(joined).sum(0)


def _logits(sizes: Sizes, call: Call, rows: Tensor) -> Tensor:
    return call.q[:, :, rows] @ call.k.mT * call.scale + _count(sizes, call, rows).to(call.q.dtype).log()


def _dense(sizes: Sizes, call: Call, lse: bool) -> Run:
    """Every pair, with the logarithm of its count added to its logit."""
    mask, heads = call.mask.to(call.q.device), call.q.shape[1]
    count = _count(sizes, call, torch.arange(call.q.shape[2], device=call.q.device))
    visible = mask.visible()
    shown = count if visible is None else count * visible.to(count.device)
    bias = shown.to(call.q.dtype).log()  # -inf where no branch joins a pair, or the mask hides it

    def run(call: Call) -> Output:
        logits = call.q @ repeat_heads(call.k, heads).mT * call.scale + bias
        return Output(softmax_rows(logits) @ repeat_heads(call.v, heads), lse_rows(logits) if lse else None)

    return run


def _plan(sizes: Sizes, call: Call) -> Sequence[Cover]:
    """A cover a branch, a tile a segment and head: the tokens that the head takes of it, side by side."""
    return [_branch(w, r, call) for w, r in sizes]


def _branch(w: int, r: int, call: Call) -> Cover:
    first, device = first_query(call.mask), call.q.device
    begins = torch.arange(first // w * w, first + call.mask.q_len, w, device=device)[:, None]
    at = begins + r * torch.arange(w // r, device=device)  # [T, w / r]
    taken = at if r == 1 else at + (call.parameters["head"] % r)[:, None, None]  # [H, T, w / r]
    return [lay(call.mask, taken, taken)]


def implementations(segment: int = 64, growth: int = 2, branches: int = 3) -> list[Implementation]:
    """Both forms. Raises ValueError for a size below 1."""
    checked("segment", segment)
    checked("growth", growth)
    sizes = tuple((segment * growth**b, growth**b) for b in range(checked("branches", branches)))
    head = Parameter("H", "constant", draw=lambda generator, shape: torch.arange(*shape), dtype="int64")
    variant = softmax_of(
        "longnet",
        partial(_logits, sizes),
        parameters={"head": head},
        paper="Ding et al. 2023, arXiv 2307.02486",
        formula="A_ij ∝ c_ij exp(scale · q_i·k_j), c_ij the number of branches that join i and j",
        cost="time and memory O(Σ_b I·segment/growth^b), at most 2·I·segment, in branches; O(I·J) dense",
    )
    dense = Implementation("dense", variant, partial(_dense, sizes), Support(lse="differentiable"))
    return [dense, tiled("branches", variant, partial(_plan, sizes), growth=Growth(1, 1, "segments fixed"))]
