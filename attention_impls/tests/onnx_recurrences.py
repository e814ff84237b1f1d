"""ONNX's LinearAttention cases as calls of the recurrent variants, and its RotaryEmbedding cases as turns of rope.

A state from before is D more keys: unit vectors with the state's rows as values, which write exactly that state. The
state after all tokens is read by D more queries, unit vectors again, that stand behind the last key.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.contract import Parameter, Variant
from attention_impls.mask import Mask
from attention_impls.tests.onnx_calls import Asked
from attention_impls.tests.onnx_cases import OnnxCase, tensor
from attention_impls.variants.positional.rope import rotation

VARIANTS = {
    "linear": ("ssd", "gla"),
    "gated": ("ssd", "gla"),
    "delta": ("deltanet", "gated_delta", "kda"),
    "gated_delta": ("gated_delta", "kda"),
}


def linear_attention(case: OnnxCase) -> Iterator[Asked]:
    """The case as a call of every variant whose decay is as fine as the case's; what comes out is `both`."""
    rule = case.attributes.get("update_rule", b"gated_delta").decode()
    for name in VARIANTS[rule]:
        variant = catalogue.find(catalogue.implementations(name)[0]).variant
        call = _call(case, variant)
        if call is not None:
            yield Asked(name, call, lambda out: out)


def both(case: OnnxCase, out: Tensor) -> dict[str, Tensor]:
    """A call's output as the operator's two: output [B, T, H·E] and present_state [B, G, D, E]."""
    tokens, heads, groups = case.inputs["query"].shape[1], *_head_counts(case)
    return {
        "output": out[:, :, :tokens].transpose(1, 2).flatten(2),
        "present_state": out[:, :: heads // groups, tokens:],
    }


def _head_counts(case: OnnxCase) -> tuple[int, int]:
    return case.attributes["q_num_heads"], case.attributes["kv_num_heads"]


def _call(case: OnnxCase, variant: Variant) -> Call | None:
    given, (heads, groups) = case.inputs, _head_counts(case)
    q, k, v = (_split(tensor(given[n]), count) for n, count in (("query", heads), ("key", groups), ("value", groups)))
    unit = torch.eye(k.shape[-1], dtype=k.dtype)
    scale = case.attributes.get("scale") or k.shape[-1] ** -0.5
    reading = (unit / scale).expand(*q.shape[:2], *unit.shape)
    before = tensor(given["past_state"]) if "past_state" in given else k.new_zeros((*k.shape[:2], 0, v.shape[-1]))
    known = before.shape[2]
    parameters = {name: _parameter(case, name, p, known, groups) for name, p in variant.parameters.items()}
    if any(value is None for value in parameters.values()):
        return None
    q, k = torch.cat([q, reading], 2), torch.cat([unit[:known].expand(*k.shape[:2], known, -1), k], 2)
    return Call(
        q,
        k,
        torch.cat([before.to(v.dtype), v], 2),
        Mask(q.shape[2], k.shape[2], causal=True, q_start=known),
        scale,
        {name: value for name, value in parameters.items() if value is not None},
        {name: p.axes for name, p in variant.parameters.items()},
    )


def _parameter(case: OnnxCase, name: str, p: Parameter, known: int, groups: int) -> Tensor | None:
    """A gate [B, G, known + T, (D)]: no decay and a full write for the keys that stand for the state from before.

    None where the case has a number for each key dimension and the variant one for all.
    """
    batch, tokens, size = case.inputs["key"].shape
    fine, blank = p.axes == "B G J D", {"decay": 0.0, "beta": 1.0}[name]
    whole = torch.full((batch, groups, known + tokens, size // groups if fine else 1), blank)
    if name in case.inputs:
        own = _split(tensor(case.inputs[name]).float(), 1 if case.inputs[name].shape[-1] == 1 else groups)
        if own.shape[-1] > 1 and not fine:
            return None
        whole[:, :, known:] = own
    whole = whole if p.dtype == "float32" else whole.to(tensor(case.inputs["key"]).dtype)
    return whole if fine else whole.squeeze(-1)


def _split(x: Tensor, heads: int) -> Tensor:
    """[B, T, H·D] -> [B, H, T, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def rotated(case: OnnxCase) -> Tensor:
    """The operator's output by the turn of `rope`, whose e^(it θ) may be any complex numbers: here cos + i sin."""
    told, given = case.attributes, case.inputs
    x, cos, sin = (tensor(given[name]) for name in ("X", "cos_cache", "sin_cache"))
    if "position_ids" in given:
        cos, sin = (table[tensor(given["position_ids"])] for table in (cos, sin))
    flat = x.dim() == 3
    heads = _split(x, told["num_heads"]) if flat else x
    size = told.get("rotary_embedding_dim") or heads.shape[-1]
    turn = rotation(bool(told.get("interleaved")))
    whole = torch.cat([turn(heads[..., :size], torch.complex(cos, sin)[:, None]), heads[..., size:]], -1)
    return whole.transpose(1, 2).flatten(2) if flat else whole
