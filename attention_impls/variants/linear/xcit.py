"""Cross-covariance attention (XCiT): features attend to features, by how alike they are over all tokens.

out[i, c] = Σ_d softmax_d(scale · t_h · q̂_c·k̂_d) v[i, d], where q̂_c, k̂_d are columns of q and k, [I] long,
brought to length 1 over the tokens; t [H] is the learned temperature. The matrix is [D, D], not [I, J]: `output` is
defined instead. Cost grows linearly with tokens. Value size must equal head size; self-attention only; scale = 1.
Each entry sums over all tokens: no masks.

Source: El-Nouby et al. 2021, "XCiT: Cross-Covariance Image Transformers", arXiv 2106.09681.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import normalize

from attention_impls.call import Call, repeat_heads
from attention_impls.contract import Growth, Parameter, Variant
from attention_impls.makers import of_call
from attention_impls.undefined import one, one_size


def _output(call: Call, rows: Tensor) -> Tensor:
    q, k = (x.mT / vector_norm(x, dim=2)[..., None] for x in (call.q, call.k))  # rows are features: [B, H, D, I]
    alike = call.scale * call.parameters["temperature"][:, None, None] * (q @ k.mT)
    return (torch.softmax(alike, -1) @ call.v.mT).mT[:, :, rows]


def _positive(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """From 1 to 2: the published start is 1."""
    return 1.0 + torch.rand(shape, generator=generator)


XCIT = Variant(
    "xcit",
    output=_output,
    parameters={"temperature": Parameter("H", "weight", draw=_positive)},
    couples=frozenset({"queries", "keys"}),
    masks=frozenset({"full"}),
    self_only=True,
    row_stochastic=False,
    scale=one,
    why_not=one_size("xcit"),
    paper="El-Nouby et al. 2021, arXiv 2106.09681",
    formula="outᵀ = softmax(scale · t · q̂ᵀ k̂) vᵀ, columns of q̂, k̂ of length 1",
    cost="time O(I·D²), memory O(I·D + D²)",
)


def _wide(call: Call) -> Call:
    """In float32 at least, keys and values repeated for the query heads that read them."""
    wide, heads = call.map(lambda t: t.to(torch.promote_types(t.dtype, torch.float32))), call.q.shape[1]
    return Call(
        wide.q, repeat_heads(wide.k, heads), repeat_heads(wide.v, heads), wide.mask, wide.scale, wide.parameters
    )


def _mixed(call: Call, alike: Tensor) -> Tensor:
    return call.v @ torch.softmax(alike * (call.parameters["temperature"] * call.scale)[:, None, None], -1).mT


def _normed(call: Call) -> Tensor:
    """Columns of q and k brought to length 1, then their products."""
    wide = _wide(call)
    q, k = normalize(wide.q, dim=2), normalize(wide.k, dim=2)
    return _mixed(wide, q.mT @ k).to(call.q.dtype)


def _gram(call: Call) -> Tensor:
    """Products first, then D² divisions by the columns' lengths: no copies of q and k."""
    wide = _wide(call)
    lengths = vector_norm(wide.q, dim=2).unsqueeze(-1) * vector_norm(wide.k, dim=2).unsqueeze(-2)
    return _mixed(wide, wide.q.mT @ wide.k / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)).to(call.q.dtype)


IMPLEMENTATIONS = [
    of_call(XCIT, _normed, name="normed", growth=Growth(1, 1)),
    of_call(XCIT, _gram, name="gram", growth=Growth(1, 1)),
]
