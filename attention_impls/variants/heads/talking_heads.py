"""Talking heads: heads mix their logits before the softmax and their weights after it.

L_g = Σ_h pre[h, g] · scale · q_h k_hᵀ;  A_h = Σ_g post[g, h] · softmax(L_g) over visible keys;  out_h = A_h v_h.
pre, post [H, H]. Source: Shazeer et al. 2020, "Talking-Heads Attention", arXiv 2003.02436, with as many
softmax heads as query and value heads, and the mixing itself, not added to an identity as some libraries do.
With both matrices the identity it is `softmax`. A mask that differs between heads has no meaning here: a
key hidden from one head would reach it through another.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads, softmax_for, softmax_rows
from attention_impls.contract import Implementation, Parameter, Variant
from attention_impls.makers import of_call
from attention_impls.through import softmax_kernel, through


def _near_identity(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """The identity and a tenth of a normal matrix over √H: mixing to be seen, logits of the usual size."""
    return torch.eye(shape[0]) + 0.1 * torch.randn(shape, generator=generator) / math.sqrt(shape[0])


def _mixed(x: Tensor, by: Tensor) -> Tensor:
    """[B, H, ...] -> [B, G, ...] = Σ_h by[h, g] · x_h."""
    return torch.einsum("bhij,hg->bgij", x, by)


def _weights(call: Call, rows: Tensor) -> Tensor:
    logits = _mixed(call.q[:, :, rows] @ call.k.mT * call.scale, call.parameters["pre"])
    return _mixed(softmax_rows(hide(logits, call.mask.visible(rows))), call.parameters["post"])


def _per_head_mask(call: Call) -> str | None:
    if call.mask.dense is None or call.mask.dense.shape[1] == 1:
        return None
    return "talking_heads mixes heads: a mask that differs between heads has no meaning for it"


_MIX = Parameter("H S", "weight", draw=_near_identity, sizes={"S": "H"})

TALKING_HEADS = Variant(
    "talking_heads",
    weights=_weights,
    parameters={"pre": _MIX, "post": _MIX},
    couples=frozenset({"heads"}),
    row_stochastic=False,
    why_not=_per_head_mask,
    paper="Shazeer et al. 2020, arXiv 2003.02436",
    formula="A_h = Σ_g post_gh softmax(Σ_h' pre_h'g · scale · q_h' k_h'ᵀ)",
    cost="time O(I·J·(H·(D+E) + H²)), memory O(H·I·J); folded: time O(I·J·H²·(D+E)), memory O(I·H²·(D+E))",
)


def _naive(call: Call) -> Tensor:
    """Logits and weights materialised, mixed by two products with [H, H]."""
    heads = call.q.shape[1]
    logits = _mixed(call.q @ repeat_heads(call.k, heads).mT * call.scale, call.parameters["pre"])
    weights = softmax_for(call.mask)(hide(logits, call.mask.visible()))
    return _mixed(weights, call.parameters["post"]) @ repeat_heads(call.v, heads)


def _folded(call: Call) -> Call:
    """Softmax attention whose head g has all heads' queries side by side, weighted by pre[:, g], over all heads' keys.

    q [B, H, I, H·D], k [B, 1, J, H·D], v [B, 1, J, H·E]: the logits are the mixed ones without an [H, I, J] of them.
    """
    q, k, v = (repeat_heads(x, call.q.shape[1]) for x in (call.q, call.k, call.v))
    queries = torch.einsum("bhid,hg->bgihd", q, call.parameters["pre"]).flatten(-2)
    keys, values = (x.transpose(1, 2).flatten(-2).unsqueeze(1) for x in (k, v))
    return replace(call, q=queries, k=keys, v=values, parameters={}, axes={})


def _unfolded(out: Tensor, call: Call) -> Tensor:
    """out [B, G, I, H·E], every softmax head's weights over every head's values -> [B, H, I, E]."""
    return torch.einsum("bgihe,gh->bhie", out.unflatten(-1, (call.q.shape[1], -1)), call.parameters["post"])


def _too_wide(call: Call) -> str | None:
    if call.where != "cuda" or call.q.shape[1] * call.q.shape[3] <= 256:
        return None
    return f"on CUDA fused kernels take heads of at most 256; folded, they are {call.q.shape[1] * call.q.shape[3]} wide"


IMPLEMENTATIONS: list[Implementation] = [
    of_call(TALKING_HEADS, _naive),
    replace(
        through(softmax_kernel("sdpa_flash"), TALKING_HEADS, _folded, _unfolded, why_not=_too_wide), name="folded_flash"
    ),
]
