"""FNet: no attention at all, the real part of a Fourier transform over tokens and features.

out = Re(F_J v F_E), F_n the unnormalised discrete Fourier transform of n points (e^(−2πi ab/n)). Queries and keys
are not read. Row i of the output is frequency i. As a matrix over tokens it would be complex: Re(F_J v F_E) = (cos
v) C − (sin v) S mixes features too, so there is no A, and `output` is defined instead. The paper transforms the
whole width of a token; here each head's E features are transformed alone (call it with H = 1 for the paper's).
Twice the transform reverses both axes. Self-attention only, no masks, no scale.

Source: Lee-Thorp et al. 2021, "FNet: Mixing Tokens with Fourier Transforms", arXiv 2105.03824.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_impls.call import Call, repeat_heads
from attention_impls.contract import Growth, Implementation, Output, Run, Variant
from attention_impls.undefined import no_scale, one


def _angles(rows: Tensor, points: int) -> Tensor:
    """2π ab/n [R, n], from ab mod n: large multiples of a circle would be rounded."""
    turns = rows.unsqueeze(-1) * torch.arange(points, device=rows.device) % points
    return turns.double() * (2 * math.pi / points)


def _output(call: Call, rows: Tensor) -> Tensor:
    """The real part of (cos − i sin) v (cos − i sin), for the rows asked for."""
    v, width = call.v, call.v.shape[3]
    tokens = _angles(rows, v.shape[2]).to(v.device)
    features = _angles(torch.arange(width, device=v.device), width)
    left, right = ((angle.cos().to(v.dtype), angle.sin().to(v.dtype)) for angle in (tokens, features))
    return (left[0] @ v) @ right[0] - (left[1] @ v) @ right[1]


FNET = Variant(
    "fnet",
    output=_output,
    couples=frozenset({"keys"}),
    masks=frozenset({"full"}),
    self_only=True,
    row_stochastic=False,
    scale=one,
    why_not=no_scale("fnet"),
    paper="Lee-Thorp et al. 2021, arXiv 2105.03824",
    formula="out = Re(F_J v F_E), F the discrete Fourier transform",
    cost="time O(J·E·log(J·E)) fft, O(J²·E + J·E²) dft; memory O(J·E), or O(J²) for the matrices",
)


def _fft(call: Call, lse: bool) -> Run:
    """torch's two-dimensional fast transform, once a key/value head; in float32 at least."""

    def run(call: Call) -> Output:
        wide = call.v.to(torch.promote_types(call.v.dtype, torch.float32))
        mixed = torch.fft.fft2(wide).real if wide.numel() else wide
        return Output(repeat_heads(mixed, call.q.shape[1]).to(call.q.dtype))

    return run


def _dft(call: Call, lse: bool) -> Run:
    """The transform as products with matrices of cosines and sines, made once."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    sizes = call.v.shape[2:]
    tokens, features = (_angles(torch.arange(n, device=call.q.device), n) for n in sizes)
    even, odd = features.cos().to(wide), features.sin().to(wide)
    cos, sin = tokens.cos().to(wide), tokens.sin().to(wide)

    def run(call: Call) -> Output:
        v = call.v.to(wide)
        mixed = cos @ (v @ even) - sin @ (v @ odd)
        return Output(repeat_heads(mixed, call.q.shape[1]).to(call.q.dtype))

    return run


IMPLEMENTATIONS = [
    Implementation("dft", FNET, _dft),
    Implementation("fft", FNET, _fft, growth=Growth(1, 1, "log J left out")),
]
