"""What the right answer is: output, log-sum-exp and gradients in float64, whole or on sampled rows;
and the low-precision yardstick, the definition itself run in the workload's dtype.

Inputs are rounded to the workload's dtype first, the oracle is not: its error is its own alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Variant

ORACLE_FROM = 1024  # keys from which a variant's faster float64 form is used instead of its rows


@dataclass(frozen=True)
class Answer:
    """out [B, H, R, E] and lse [B, H, R] on the asked rows; gradients by input name, whole; in one dtype."""

    out: Tensor
    lse: Tensor | None
    gradients: dict[str, Tensor]


def answer(
    variant: Variant,
    call: Call,
    rows: Tensor,
    *,
    upstream: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    learned: frozenset[str] = frozenset(),
) -> Answer:
    """The definition's answer on `rows` (indices [R]), computed in `dtype` on the CPU.

    upstream: gradient of the output on these rows [B, H, R, E], zero elsewhere; with it, gradients of q,
    k, v and of the parameters named in `learned` are exact, for a gradient only reaches them through
    these rows. lse is None for mechanisms that have none.
    """
    wanted = upstream is not None
    exact = call.to("cpu").map(lambda t: t.detach().to(dtype))
    leaves = {"q": exact.q, "k": exact.k, "v": exact.v} | {n: exact.parameters[n] for n in sorted(learned)}
    for leaf in leaves.values():
        leaf.requires_grad_(wanted)
    with torch.set_grad_enabled(wanted):
        out, lse = in_parts(variant, exact, rows)
    if upstream is None:
        return Answer(out, lse, {})
    gradients = torch.autograd.grad(
        out, list(leaves.values()), upstream.to("cpu", dtype), allow_unused=True, materialize_grads=True
    )
    lse = None if lse is None else lse.detach()
    return Answer(out.detach(), lse, dict(zip(leaves, gradients, strict=True)))


def in_parts(variant: Variant, call: Call, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """The definition's output and LSE on `rows`, sequence by sequence and group by group of heads: bounds memory.

    Heads stay together where a variant couples them.
    """
    batches, heads, group = call.q.shape[0], call.q.shape[1], call.group
    if not batches:
        empty = call.q[:, :, rows, :1].expand(-1, -1, -1, call.v.shape[-1])  # of q, so that it has a gradient
        return empty, empty[..., 0] if variant.lse else None
    step = heads if "heads" in variant.couples else group
    grid = [
        [rows_of(variant, call.batch(b).heads(h, h + step).expanded(), rows) for h in range(0, heads, step)]
        for b in range(batches)
    ]
    out = torch.cat([torch.cat([part[0] for part in line], 1) for line in grid])
    if variant.lse is None:
        return out, None
    return out, torch.cat([torch.cat([part[1] for part in line if part[1] is not None], 1) for line in grid])


def rows_of(variant: Variant, call: Call, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """A·v, or the variant's own output, [B, H, R, E] and the LSE [B, H, R] on `rows` of a call with heads expanded."""
    lse = variant.lse(call, rows) if variant.lse else None
    if variant.oracle is not None and call.k.shape[2] >= ORACLE_FROM:
        return variant.oracle(call, rows), lse
    if variant.weights is None:
        return _require(variant.output)(call, rows), lse
    out = variant.weights(call, rows) @ call.v
    return (variant.finish(out, call, rows) if variant.finish else out), lse


def _require(output: Callable[[Call, Tensor], Tensor] | None) -> Callable[[Call, Tensor], Tensor]:
    if output is None:
        raise ValueError("a variant without weights must define output")
    return output
