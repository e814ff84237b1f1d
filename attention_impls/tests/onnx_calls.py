"""ONNX's Attention and FlexAttention cases as calls: the mask as a rule wherever the case has one.

A float mask is a bias, which no mask of ours can say. Its -inf hide keys; the rest is added to the logits by more
columns, one a query: scale · [q, e_i / scale]·[k, bias_·j] = scale · q·k + bias_ij. Under a soft cap, which would
cap the bias too, each query becomes a sequence of its own whose values are multiplied by exp(bias).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx
import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_impls.call import Call, repeat_heads
from attention_impls.mask import Mask, Pattern, full_mask
from attention_impls.tests.onnx_cases import OnnxCase, tensor

Restore = Callable[[Tensor], Tensor]
"""The output [B, H, I, E] of an asked call -> the case's Y in the case's own layout."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A call that must give the case's Y, and the text that names the variant with its options."""

    variant: str
    call: Call
    restore: Restore


@dataclass(frozen=True, eq=False)
class Parts:
    """A case taken apart: the call without its bias, the bias [1|B, 1|H, I, J], cap, window, and Y's layout."""

    call: Call
    bias: Tensor | None = None
    cap: float = 0.0
    window: Pattern | None = None
    causal_window: int = 0
    factor: float = 1.0
    flat: bool = False

    @property
    def variant(self) -> str:
        return f"softcap:cap-{self.cap}" if self.cap else "softmax"

    def restored(self, out: Tensor) -> Tensor:
        """[B, H, I, E] -> Y, which is [B, I, H·E] where the inputs were flat."""
        return self.factor * (out.transpose(1, 2).flatten(2) if self.flat else out)

    @property
    def masked(self) -> Call:
        """The call with the window as a pattern in its mask."""
        return replace(self.call, mask=replace(self.call.mask, pattern=self.window))


def asked(parts: Parts) -> list[Asked]:
    """The calls that must give Y: one, and where the window is the causal one of `sliding_window`, two."""
    if parts.bias is not None and parts.cap:
        return [_reweighted(parts)]
    wide = parts.masked if parts.bias is None else with_bias(parts.masked, parts.bias)
    size = parts.call.v.shape[-1]

    def restore(out: Tensor) -> Tensor:
        return parts.restored(out[..., :size])

    found = [Asked(parts.variant, wide, restore)]
    if parts.causal_window and not parts.cap:
        own = replace(wide, mask=replace(wide.mask, pattern=None))
        found.append(Asked(f"sliding_window:window-{parts.causal_window}", own, restore))
    return found


def exposed(parts: Parts, mode: int) -> tuple[str, Call]:
    """The variant and the call whose logits (weights at mode 3) are the operator's `qk_matmul_output`.

    0: scale · q·k; 1: capped; 2: hidden and biased as well; 3: after the softmax.
    """
    if mode < 2:
        bare = replace(parts.call, mask=full_mask(parts.call.q.shape[2], parts.call.k.shape[2]))
        return parts.variant if mode else "softmax", bare
    if parts.bias is None:
        return parts.variant, parts.masked
    assert not parts.cap, "no case of ONNX shows capped logits with a bias added"
    return parts.variant, with_bias(parts.masked, parts.bias)


def with_bias(call: Call, bias: Tensor) -> Call:
    """The call whose logits have `bias` added; values get columns of zeros so that they stay as wide as queries."""
    batch, heads, rows = call.q.shape[:3]
    shared = bias.shape[1] == 1
    k, v = (x if shared else repeat_heads(x, heads) for x in (call.k, call.v))
    own = (torch.eye(rows, dtype=torch.float64) / call.scale).to(call.q.dtype).expand(batch, heads, rows, rows)
    theirs = bias.to(k.dtype).mT.expand(*k.shape[:3], rows)
    narrower = max(call.q.shape[-1] + rows - v.shape[-1], 0)
    return replace(call, q=torch.cat([call.q, own], -1), k=torch.cat([k, theirs], -1), v=pad(v, (0, narrower)))


def _reweighted(parts: Parts) -> Asked:
    """softmax(s + b)·v = softmax(s)·(eᵇ v) / softmax(s)·eᵇ, each query a sequence of its own since b differs by row."""
    call, bias = parts.masked, parts.bias
    assert bias is not None and call.mask.full and bias.shape[1] == 1
    batch, heads, rows, size = call.q.shape
    factors = bias.exp().expand(batch, 1, rows, -1).transpose(1, 2).flatten(0, 1).unsqueeze(-1)  # [B·I, 1, J, 1]
    k, v = (x.repeat_interleave(rows, 0) for x in (call.k, call.v))
    one = Call(
        q=call.q.transpose(1, 2).reshape(batch * rows, heads, 1, size),
        k=k,
        v=torch.cat([v, torch.ones_like(v)], -1) * factors,
        mask=Mask(1, k.shape[2]),
        scale=call.scale,
    )

    def restore(out: Tensor) -> Tensor:
        above, below = out.chunk(2, -1)
        return parts.restored((above / below).view(batch, rows, heads, -1).transpose(1, 2))

    return Asked(parts.variant, one, restore)


def attention(case: OnnxCase) -> Parts:
    """The Attention operator of opsets 23 to 25."""
    told, given = case.attributes, case.inputs
    flat = given["Q"].ndim == 3
    q = _heads(given["Q"], told.get("q_num_heads", 0))
    k, v = (_heads(given[name], told.get("kv_num_heads", 0)) for name in ("K", "V"))
    before = 0
    if "past_key" in given:
        before = given["past_key"].shape[2]
        k, v = (torch.cat([tensor(given[f"past_{n}"]), x], 2) for n, x in (("key", k), ("value", v)))
    lengths = tensor(given["nonpad_kv_seqlen"]) if "nonpad_kv_seqlen" in given else None
    causal = bool(told.get("is_causal", 0))
    rows, keys = q.shape[2], k.shape[2]
    dense, bias = _mask(given.get("attn_mask"), rows, keys)
    start = before if lengths is None else lengths - rows
    mask = Mask(rows, keys, causal=causal, q_start=start, key_lengths=lengths, dense=dense)
    left, right = told.get("left_window_size", -1), told.get("right_window_size", -1)
    return Parts(
        Call(q, k, v, mask, told.get("scale") or q.shape[-1] ** -0.5),
        bias,
        told.get("softcap", 0.0),
        _window(left, right) if max(left, right) >= 0 else None,
        left + 1 if causal and left >= 0 and right < 0 else 0,
        flat=flat,
    )


def flex_attention(case: OnnxCase) -> Parts:
    """The FlexAttention operator: what its subgraphs do is told by their names and constants."""
    q, k, v = (tensor(case.inputs[name]) for name in ("Q", "K", "V"))
    rows, keys = q.shape[2], k.shape[2]
    call = Call(q, k, v, Mask(rows, keys), case.attributes.get("scale") or q.shape[-1] ** -0.5)
    score, prob = (case.attributes.get(name) for name in ("score_mod", "prob_mod"))
    factor = 1.0 if prob is None else {"prob_mod_scale": _constant}[prob.name](prob, "scale")
    if score is None:
        return Parts(call, factor=factor)
    if score.name == "score_mod_causal_mask":
        return Parts(replace(call, mask=Mask(rows, keys, causal=True)))
    if score.name == "score_mod_soft_cap":
        return Parts(call, cap=_constant(score, "cap"))
    if score.name == "score_mod_bias":
        return Parts(call, torch.full((1, 1, rows, keys), _constant(score, "bias")))
    if score.name == "score_mod_relative_positional":
        return Parts(call, (torch.arange(rows)[:, None] - torch.arange(keys)).float()[None, None])
    raise NotImplementedError(f"{case.name}: no call says what the subgraph {score.name} does")


def _constant(graph: onnx.GraphProto, name: str) -> float:
    return next(float(onnx.numpy_helper.to_array(t)) for t in graph.initializer if t.name == name)


def _heads(x: np.ndarray, heads: int) -> Tensor:
    """[B, T, H·D] or [B, H, T, D] -> [B, H, T, D]."""
    whole = tensor(x)
    return whole if whole.dim() == 4 else whole.unflatten(-1, (heads, -1)).transpose(1, 2)


def _mask(given: np.ndarray | None, rows: int, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """(visible, bias), each [1|B, 1|H, I, J] or None, from a mask of rank 1 to 4 that may be shorter than the keys."""
    if given is None:
        return None, None
    told = tensor(given)
    hidden = False if told.dtype is torch.bool else float("-inf")
    told = pad(told, (0, keys - told.shape[-1]), value=hidden)
    told = told.view(*(1,) * (4 - told.dim()), *told.shape)
    told = told.expand(*told.shape[:2], rows, keys)
    if told.dtype is torch.bool:
        return told, None
    seen = ~torch.isneginf(told)
    finite = told.masked_fill(~seen, 0.0)
    return None if bool(seen.all()) else seen, finite if bool(finite.any()) else None


def _window(left: int, right: int) -> Pattern:
    """Both bounds inclusive, a negative one open."""

    def near(i: Tensor, j: Tensor) -> Tensor:
        seen = torch.ones_like(i == j)
        if left >= 0:
            seen = seen & (i - j <= left)
        return seen & (j - i <= right) if right >= 0 else seen

    return near
