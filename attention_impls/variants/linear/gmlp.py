"""gMLP's spatial gating unit: one learned matrix of positions mixes the tokens, and queries gate what it gives.

out_i = q_i ⊙ (Σ_visible w_ij v_j + b_i), w [I, J] and b [I] learned, shared by heads and features and bound to the
lengths: A = w with hidden pairs zero. Queries are the half z_1 of the paper's unit, values its half z_2 (whose norm
belongs to the layer); keys are not read. Under a causal mask w is lower triangular. Value size must equal head
size; there is no scale. A query that sees no key would give q_i ⊙ b_i: that call is refused.

Source: Liu et al. 2021, "Pay Attention to MLPs", arXiv 2105.08050.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.call import Call, repeat_heads
from attention_impls.contract import Growth, Implementation, Output, Parameter, Run, Variant
from attention_impls.tiling import bands, checked
from attention_impls.undefined import either, no_scale, one, one_size


def _weights(call: Call, rows: Tensor) -> Tensor:
    w = call.parameters["w"][rows].expand(*call.q.shape[:2], -1, -1)
    visible = call.mask.visible(rows)
    return w if visible is None else w.masked_fill(~visible, 0.0)


def _gate(out: Tensor, call: Call, rows: Tensor) -> Tensor:
    return call.q[:, :, rows] * (out + call.parameters["b"][rows].unsqueeze(-1))


def _unseeing(call: Call) -> str | None:
    return (
        "gmlp gives zeros to no query: it is not defined for one that sees no key" if call.mask.has_empty_rows else None
    )


def _small(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal over √J."""
    return torch.randn(shape, generator=generator) / math.sqrt(shape[1])


def _near_one(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """1, as the paper starts it, and a tenth of a normal vector."""
    return 1.0 + 0.1 * torch.randn(shape, generator=generator)


GMLP = Variant(
    "gmlp",
    weights=_weights,
    finish=_gate,
    parameters={"w": Parameter("I J", "weight", draw=_small), "b": Parameter("I", "weight", draw=_near_one)},
    row_stochastic=False,
    scale=one,
    why_not=either(no_scale("gmlp"), one_size("gmlp"), _unseeing),
    paper="Liu et al. 2021, arXiv 2105.08050",
    formula="out = q ⊙ (w v + b)",
    cost="time O(I·J·E), tiled the visible part of it; memory O(I·J) masked, O(I·E) and one tile tiled",
)


def _gated(call: Call, mixed: Tensor) -> Output:
    """q ⊙ (mixed + b), mixed [B, H or G, I, E] in float32 at least."""
    bias = call.parameters["b"].to(mixed.dtype).unsqueeze(-1)
    return Output((call.q.to(mixed.dtype) * (repeat_heads(mixed, call.q.shape[1]) + bias)).to(call.q.dtype))


def _whole(call: Call, lse: bool) -> Run:
    """One product with the masked matrix, once a key/value head where the mask is the same for all heads."""
    visible = call.mask.simplified().to(call.q.device).visible()

    def run(call: Call) -> Output:
        wide = torch.promote_types(call.q.dtype, torch.float32)
        w, v = call.parameters["w"].to(wide), call.v.to(wide)
        if visible is None:
            return _gated(call, w @ v)
        v = v if visible.shape[1] == 1 else repeat_heads(v, call.q.shape[1])
        return _gated(call, w.masked_fill(~visible, 0.0) @ v)

    return run


def tiled(block: int = 128) -> Implementation:
    """Tiles of `block` queries × `block` keys; those that hide every pair are left out. Raises ValueError below 1."""
    checked("block", block)

    def prepare(call: Call, lse: bool) -> Run:
        plan = bands(call.mask.simplified().to(call.q.device), block, block)

        def run(call: Call) -> Output:
            wide = torch.promote_types(call.q.dtype, torch.float32)
            w, v = call.parameters["w"].to(wide), repeat_heads(call.v, call.q.shape[1]).to(wide)
            mixed = []
            for band in plan:
                rows = v.new_zeros((*v.shape[:2], band.hi - band.lo, v.shape[3]))
                for tile in band.tiles:
                    part = w[band.lo : band.hi, tile.lo : tile.hi]
                    part = part if tile.visible is None else part.masked_fill(~tile.visible, 0.0)
                    rows = rows + part @ v[:, :, tile.lo : tile.hi]
                mixed.append(rows)
            return _gated(call, torch.cat(mixed, 2))

        return run

    return Implementation("tiled", GMLP, prepare, configure=tiled, growth=Growth(bytes=1))


IMPLEMENTATIONS = [Implementation("whole", GMLP, _whole), tiled()]
