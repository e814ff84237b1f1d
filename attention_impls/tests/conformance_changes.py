"""Changed calls, and what of them should be seen: the material of conformance checks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention_impls import inputs
from attention_impls.call import Call

AXES = {"q": "B H I D", "k": "B G J D", "v": "B G J E"}


def largest(tensor: Tensor) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def not_finite(tensor: Tensor) -> float:
    return float((~tensor.isfinite()).sum())


def other_values(p: Tensor) -> Tensor:
    """Other values of the same kind: signs, ranges of gates and integer ranges stay what they were."""
    if not p.is_floating_point():
        return p.flip(-1)
    made = inputs.generator("another parameter")
    return p * (0.4 + 0.6 * torch.rand(p.shape, generator=made, dtype=torch.float32)).to(p.dtype)


def from_cut(tensor: Tensor, axes: str, cut: int) -> Tensor:
    """What lies at or after the cut on the token axis; nothing of tensors that have none."""
    letters = axes.split()
    at = next((letters.index(letter) for letter in ("J", "I") if letter in letters), None)
    return tensor.new_zeros(0) if at is None else tensor.narrow(at, cut, tensor.shape[at] - cut)


def replaced(call: Call, letter: str, cut: int, size: float) -> Call:
    """The call with other numbers, `size` times larger in q, k and v, from `cut` on along an axis."""
    made = inputs.generator(f"replaced/{letter}")

    def other(tensor: Tensor, axes: str, factor: float) -> Tensor:
        if letter not in axes.split() or not tensor.is_floating_point():
            return tensor
        at = axes.split().index(letter)
        fresh = tensor.clone()
        part = fresh.narrow(at, cut, tensor.shape[at] - cut)
        part.mul_(torch.rand(part.shape, generator=made).to(part.dtype) * factor)
        return fresh

    own = {name: other(p, call.axes[name], 1.0) for name, p in call.parameters.items()}
    q, k, v = (other(t, AXES[n], size) for n, t in (("q", call.q), ("k", call.k), ("v", call.v)))
    return replace(call, q=q, k=k, v=v, parameters=own)


def visible(call: Call) -> Tensor:
    """[B, H, I, J] bool."""
    shape = (*call.q.shape[:3], call.k.shape[2])
    seen = call.mask.visible()
    return torch.ones(shape, dtype=torch.bool) if seen is None else seen.expand(shape)


def unseen_keys(call: Call) -> Tensor:
    """[B, 1, J, 1] bool: keys that no query of any head may see."""
    return ~visible(call).any(2).any(1)[:, None, :, None]


def empty_rows(call: Call) -> Tensor:
    """[B, H, I] bool: queries that see no key in any head (heads may be mixed)."""
    shape = call.q.shape[:3]
    return (~visible(call).any(-1)).all(1, keepdim=True).expand(shape)


def with_other_last_sequence(call: Call) -> Call:
    def other(tensor: Tensor, axes: str) -> Tensor:
        if not axes.startswith("B") or tensor.shape[0] != call.q.shape[0] or not tensor.is_floating_point():
            return tensor
        return torch.cat([tensor[:-1], other_values(tensor[-1:])])

    q, k, v = (other(t, "B") for t in (call.q, call.k, call.v))
    own = {name: other(p, call.axes[name]) for name, p in call.parameters.items()}
    return replace(call, q=q, k=k, v=v, parameters=own)


def born_transposed(tensor: Tensor) -> Tensor:
    if tensor.dim() < 3:
        return tensor
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def every_second_column(tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(2, -1)[..., ::2] if tensor.dim() else tensor
