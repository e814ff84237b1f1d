"""fla-core 0.6 (flash-linear-attention, Yang & Zhang): its plain torch references, read by path, without Triton.

Most compute in float32 whatever the dtype; all begin at position 0 and know neither padding nor documents. Some expect
keys of length 1 and are given k / |k|, as the definitions have it. Retention has the paper's decays built in and takes
2 to the power of distances that it hides afterwards: it is no number from 2796 tokens on. Based adds 1e-6 to row sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attention_impls.call import Call
from attention_impls.contract import POLICY, Growth, Implementation, Run, Support, Variant
from attention_impls.needs import package
from attention_impls.peers import Why, first_of, loaded, only_default_scale, out_only, some_heads_shared
from attention_impls.variants.linear.based import BASED
from attention_impls.variants.positional.fox import FOX
from attention_impls.variants.recurrent.deltanet import DELTANET
from attention_impls.variants.recurrent.gated_delta import GATED_DELTA
from attention_impls.variants.recurrent.gla import GLA
from attention_impls.variants.recurrent.kda import KDA
from attention_impls.variants.recurrent.retention import RETENTION, log_decays
from attention_impls.variants.recurrent.ssd import SSD
from attention_impls.variants.scores.stick_breaking import STICK_BREAKING

Kernel = Callable[[Any, Call], Tensor]
"""(the library's function, a call) -> out [B, H, I, E]."""

RETENTION_OVERFLOWS = 2796  # tokens whose distance times log2(1 − 2^-5) reaches 2^128

_SUPPORT = Support(
    dtypes=frozenset({"f32", "tf32", "f16", "bf16"}),
    masks=frozenset({"causal"}),
    starts=frozenset({"zero"}),
    grouped_heads=False,
    cross=False,
    needs=(package("fla", "fla-core"), package("einops", "einops")),
)


def _entry(
    variant: Variant, name: str, where: str, kernel: Kernel, why_not: Why | None = None, support: Support = _SUPPORT
) -> Implementation:
    """`where` is folder/function in fla/ops."""

    def prepare(call: Call, lse: bool) -> Run:
        folder, _, function = where.partition("/")
        found = getattr(loaded("fla", f"ops/{folder}/naive.py"), function)
        return out_only(lambda call: kernel(found, call))

    growth = None if name == "fla_parallel" else Growth(1, 1)
    return Implementation(name, variant, prepare, replace(support, why_not=why_not), growth=growth)


def _tokens_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    """[B, H, T, …] <-> [B, T, H, …], the layout of its newer functions."""
    return tuple(x.transpose(1, 2) for x in tensors)


def _gated(found: Any, call: Call) -> Tensor:
    """Decay and key dimensions as they come: simple gated linear attention."""
    q, k, v, g = _tokens_first(call.q, call.k, call.v, call.parameters["decay"])
    return _tokens_first(found(q, k, v, g, scale=call.scale)[0])[0]


def _gated_by_dimension(found: Any, call: Call) -> Tensor:
    return _tokens_first(found(*_tokens_first(call.q, call.k, call.v, call.parameters["decay"]))[0])[0]


def _gated_delta(found: Any, call: Call) -> Tensor:
    """By name: the order of decay and beta differs between its two forms."""
    gates = call.parameters["decay"], call.parameters["beta"]
    q, k, v, g, beta = _tokens_first(call.q, normalize(call.k, dim=-1), call.v, *gates)
    return _tokens_first(found(q, k, v, g=g, beta=beta, scale=call.scale)[0])[0]


def _delta(found: Any, call: Call) -> Tensor:
    out: Tensor = found(call.q, normalize(call.k, dim=-1), call.v, call.parameters["beta"])[0]
    return out


def _forgetting(found: Any, call: Call) -> Tensor:
    return _tokens_first(found(*_tokens_first(call.q, call.k, call.v, call.parameters["forget"]), scale=call.scale))[0]


def _stick_breaking(found: Any, call: Call) -> Tensor:
    return _tokens_first(found(*_tokens_first(call.q, call.k, call.v), scale=call.scale)[0])[0]


def _plain(found: Any, call: Call) -> Tensor:
    out: Tensor = found(call.q, call.k, call.v)
    return out


def _scaled(found: Any, call: Call) -> Tensor:
    out: Tensor = found(call.q, call.k, call.v, scale=call.scale)
    return out


def _whole_chunks(size: int) -> Why:
    def why(call: Call) -> str | None:
        tokens = call.q.shape[2]
        return f"needs whole chunks of {size} tokens; got {tokens}" if tokens % size else None

    return why


def _other_decays(call: Call) -> str | None:
    decay = call.parameters["decay"]
    if decay.device.type == "meta" or torch.allclose(decay.double().cpu(), log_decays(len(decay)), atol=1e-6):
        return None
    return "has the decays of the paper's first heads built in"


def _overflows(call: Call) -> str | None:
    tokens = call.q.shape[2]
    return f"overflows from {RETENTION_OVERFLOWS} tokens on; got {tokens}" if tokens >= RETENTION_OVERFLOWS else None


def _causal_squares(call: Call) -> str | None:
    """Based: one query against many keys looks at all of them, since its triangle of one row is broadcast."""
    if not call.mask.causal:
        return f"{POLICY}it is causal; that a single query would see every key is an accident of broadcasting"
    rows, keys = call.q.shape[2], call.k.shape[2]
    return None if rows == keys else f"needs as many keys as queries ({rows} queries, {keys} keys)"


_SHARING = replace(_SUPPORT, grouped_heads=True)
_STICK_BREAKING = replace(_SHARING, dtypes=_SUPPORT.dtypes | {"f64"})
_BASED = replace(_SHARING, masks=frozenset({"causal", "full"}), cross=True)
_RETENTION = first_of(only_default_scale, _overflows, _other_decays)

IMPLEMENTATIONS = [
    _entry(RETENTION, "fla_parallel", "retention/naive_retention", _plain, _RETENTION),
    _entry(SSD, "fla_recurrent", "simple_gla/naive_recurrent_simple_gla", _gated, some_heads_shared, _SHARING),
    _entry(SSD, "fla_chunkwise", "simple_gla/naive_chunk_simple_gla", _gated),
    _entry(SSD, "fla_parallel", "simple_gla/naive_parallel_simple_gla", _gated, some_heads_shared, _SHARING),
    _entry(GLA, "fla_recurrent", "gla/naive_recurrent_gla", _gated_by_dimension, only_default_scale),
    _entry(DELTANET, "fla_recurrent", "delta_rule/delta_rule_recurrence", _delta, only_default_scale),
    _entry(
        DELTANET,
        "fla_chunkwise",
        "delta_rule/delta_rule_chunkwise",
        _delta,
        first_of(only_default_scale, _whole_chunks(32)),
        replace(_SUPPORT, dtypes=frozenset({"f64", "f32", "tf32"})),
    ),
    _entry(GATED_DELTA, "fla_recurrent", "gated_delta_rule/naive_recurrent_gated_delta_rule", _gated_delta),
    _entry(GATED_DELTA, "fla_chunkwise", "gated_delta_rule/naive_chunk_gated_delta_rule", _gated_delta),
    _entry(KDA, "fla_recurrent", "kda/naive_recurrent_kda", _gated_delta),
    _entry(KDA, "fla_chunkwise", "kda/naive_chunk_kda", _gated_delta, _whole_chunks(64)),
    _entry(FOX, "fla_parallel", "forgetting_attn/naive_forgetting_attn", _forgetting, support=_SHARING),
    _entry(
        STICK_BREAKING,
        "fla_parallel",
        "stickbreaking_attn/naive_stickbreaking_attn",
        _stick_breaking,
        support=_STICK_BREAKING,
    ),
    _entry(
        BASED,
        "fla_parallel",
        "based/naive_parallel_based",
        _scaled,
        first_of(_causal_squares, some_heads_shared),
        _BASED,
    ),
]
