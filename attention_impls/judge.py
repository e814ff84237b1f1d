"""How far an answer is from the right one, and how far it may be.

Two questions. *Is it this function?* asked in the widest dtype, by the worst row. *How precise is it
here?* at the workload's dtype: at most twice (gradients three times) the error of the definition run in
that dtype, plus one rounding step, never above 5 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CEILING = 0.05  # no record above this relative error is ever ok
FORWARD_FACTOR, BACKWARD_FACTOR = 2.0, 3.0  # as the flash-attention and attention-gym tests allow
LOGITS = 5.0  # what logits of normal inputs reach at the scale D^-1/2
BLUNT_YARDSTICK = 16.0  # a yardstick worse than this many roundings is replaced by "float32 inside, rounded once"
SAME_FUNCTION = {
    torch.float64: 1e-10,
    torch.float32: 1e-3,
}  # worst row: rounding is far below, any mutant far above


@dataclass(frozen=True)
class Errors:
    """Distances between an answer and the right one.

    relative: L2 over everything, relative. worst_row: the largest row error (root mean square over the last
    axis) against the row's own size or the head's, whichever is larger: the root mean square of the row, or of
    the head's rows that are not zero. max_abs: largest absolute
    difference. nonfinite: entries that are not finite where the right answer is, or the other way round.
    floors: `relative` as a multiple of the error made by merely rounding the right answer to the answer's dtype.
    """

    relative: float
    worst_row: float
    max_abs: float
    nonfinite: int
    floors: float


def unit_roundoff(dtype: torch.dtype) -> float:
    """u, half the distance from 1 to the next number."""
    return float(torch.finfo(dtype).eps) / 2


def errors(actual: Tensor, expected: Tensor) -> Errors:
    """Distances of `actual` [..., rows, size] from `expected` (float64). Infinite entries match equal infinite ones.

    Raises ValueError where the shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"the answer has shape {tuple(actual.shape)}; expected {tuple(expected.shape)}")
    got, right = actual.detach().cpu().double(), expected.detach().cpu().double()
    if not right.numel():
        return Errors(0.0, 0.0, 0.0, 0, 0.0)
    agree = (got == right) & ~torch.isfinite(right)
    got, right = got.masked_fill(agree, 0.0), right.masked_fill(agree, 0.0)
    bad = int((~torch.isfinite(got) | ~torch.isfinite(right)).sum())
    if bad:
        return Errors(math.inf, math.inf, math.inf, bad, math.inf)
    difference = got - right
    rounded = right.to(actual.dtype).double() - right
    floor = float(rounded.norm()) if actual.dtype != torch.float64 else 0.0
    u = unit_roundoff(actual.dtype)
    return Errors(
        relative=_ratio(float(difference.norm()), float(right.norm())),
        worst_row=_worst_row(difference, right),
        max_abs=float(difference.abs().max()),
        nonfinite=0,
        floors=_ratio(float(difference.norm()), floor or u * float(right.norm())),
    )


def budget(
    yardstick: Errors, dtype: torch.dtype, *, keys: int = 1, backward: bool = False, continuous: bool = True
) -> float:
    """The worst-row error allowed at `dtype`, given the definition's own error there and how many keys are summed.

    In float32 and float64 a kernel may sum in another order than the definition, whose error on a row with few
    keys is exactly zero (flash's rowsum(dO * O) is not): never less than 4 u (1 + L) sqrt(keys) is allowed, with
    logits up to L, and three times that of a gradient.
    """
    u = unit_roundoff(dtype)
    own = yardstick.worst_row
    half = dtype.itemsize < 4
    if half and (own > BLUNT_YARDSTICK * u or not continuous):
        own = u
    factor = BACKWARD_FACTOR if backward else FORWARD_FACTOR
    order = 0.0 if half else 4 * u * (1 + LOGITS) * math.sqrt(keys) * (BACKWARD_FACTOR if backward else 1)
    return min(max(factor * own + u, order), CEILING)


def _ratio(part: float, whole: float) -> float:
    if part == 0.0:
        return 0.0
    return part / whole if whole else math.inf


def _worst_row(difference: Tensor, right: Tensor) -> float:
    if right.dim() < 2:
        return _ratio(float(difference.norm()), float(right.norm()))
    rows = difference.square().mean(-1).sqrt()
    squares = right.square().mean(-1)  # [..., rows]
    over = (-1,) if right.dim() >= 3 else tuple(range(squares.dim()))
    filled = (squares > 0).sum(over, keepdim=True).clamp(min=1)  # rows that are zero say nothing of the head's size
    scale = (squares.sum(over, keepdim=True) / filled).sqrt()
    # Rows of a gradient differ in size without bound (a key that all early queries share): a large one may be off
    # by its own roundings, a small one by those of the sums it was part of.
    scale = torch.maximum(squares.sqrt(), scale)
    nothing = scale == 0  # a head that is all zeros is judged absolutely
    return float((rows / torch.where(nothing, torch.ones_like(scale), scale)).max())
