"""ReBased: linear attention whose similarity is the square of a product of normalised, learned queries and keys.

A_ij = (q'_i·k'_j)² / Σ_visible, q' = γ_q ⊙ norm(q) + β_q, k' = γ_k ⊙ norm(k) + β_k: layer norm over D (eps 1e-5),
γ, β [D] learned and shared by all heads. Unlike `based`, whose weights are at least 1/2, a weight can be zero:
where q' is orthogonal to k'. A scale of q·k would cancel: there is none. Features: the D(D+1)/2 distinct products
of two elements. A query all of whose visible keys are orthogonal to it gives zeros (a library adds 1e-6 to the sum
instead). Where a query is almost orthogonal to all keys it sees, products of features cancel: the linear forms'
relative error is that of (q'·k')² beside |q'|²|k'|².

Source: Aksenov et al. 2024, "Linear Transformers with Learnable Kernel Functions are Better In-Context Models",
arXiv 2402.10644; the square is that of the product, as in the authors' kernels, not element by element.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from attention_impls.call import Call
from attention_impls.contract import POLICY, Implementation, Parameter, Variant
from attention_impls.linearised import Feature, linearised, log_weight, normalised
from attention_impls.undefined import no_scale, one
from attention_impls.variants.linear.based import pairs

EPS = 1e-5


def _affine(call: Call, x: Tensor, which: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    norm = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
    return call.parameters[f"gamma_{which}"] * norm + call.parameters[f"beta_{which}"]


def _similar(call: Call, rows: Tensor) -> Tensor:
    s = (_affine(call, call.q[:, :, rows], "q") @ _affine(call, call.k, "k").mT).square()
    visible = call.mask.visible(rows)
    return s if visible is None else s.masked_fill(~visible, 0.0)


def _weights(call: Call, rows: Tensor) -> Tensor:
    s = _similar(call, rows)
    return normalised(s, s.sum(-1, keepdim=True))


def _lse(call: Call, rows: Tensor) -> Tensor:
    return log_weight(_similar(call, rows).sum(-1, keepdim=True))


def _gain(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return 1.0 + 0.1 * torch.randn(shape, generator=generator)


def _shift(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return 0.1 * torch.randn(shape, generator=generator)


_GAIN, _SHIFT = Parameter("D", "weight", draw=_gain), Parameter("D", "weight", draw=_shift)

REBASED = Variant(
    "rebased",
    weights=_weights,
    lse=_lse,
    join="lse",
    scale=one,
    why_not=no_scale("rebased"),
    parameters={"gamma_q": _GAIN, "beta_q": _SHIFT, "gamma_k": _GAIN, "beta_k": _SHIFT},
    paper="Aksenov et al. 2024, arXiv 2402.10644",
    formula="A = (q'·k')² over its row sums, x' = γ ⊙ layer_norm(x) + β",
    cost="time O(I·J·D) or O((I+J)·D²·E/2); memory O(I·J), or a state of D²·E/2 and one chunk",
)


def _features(call: Call) -> tuple[Feature, Feature]:
    """pairs of the normalised queries and keys; in float32 at least."""

    def of(which: str) -> Feature:
        gain, shift = (
            p.to(torch.promote_types(p.dtype, torch.float32))
            for p in (call.parameters[f"gamma_{which}"], call.parameters[f"beta_{which}"])
        )
        return lambda x: pairs(layer_norm(x.to(gain.dtype), gain.shape, gain, shift, EPS))

    return of("q"), of("k")


def _one_key(call: Call) -> str | None:
    """One square alone can be as small as it likes beside the products of features that it is the sum of."""
    if call.k.shape[2] > 1:
        return None
    return POLICY + "with one key the products of features cancel; the quadratic form keeps the digits"


def _parallel(made: Implementation) -> Implementation:
    return replace(made, support=replace(made.support, why_not=_one_key)) if made.name == "parallel" else made


IMPLEMENTATIONS = [_parallel(made) for made in linearised(REBASED, _features)]
