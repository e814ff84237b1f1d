"""One attention call as an object, so that a part of a call is a call; and the row algebra they share.

Axes everywhere: B batch, H query heads, G key/value heads, I queries, J keys, D head size, E value size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attention_impls.mask import Mask


@dataclass(frozen=True, eq=False)
class Call:
    """q [B, H, I, D], k [B, G, J, D], v [B, G, J, E], a mask, the scale of the logits and named parameters.

    `axes` gives each parameter's axes in the letters above ("B H J", "H", "F D", …) so that a part
    of the call knows what to slice. Query head h reads key/value head h * G // H (interleaved).
    `place` names the device type a call on the meta device stands for.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    scale: float
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    place: str = ""

    @property
    def where(self) -> str:
        """The type of the device it runs on, or would run on: "cpu", "cuda"."""
        return self.place or self.q.device.type

    @property
    def group(self) -> int:
        """Query heads per key/value head, H // G."""
        return self.q.shape[1] // self.k.shape[1]

    def rows(self, lo: int, hi: int, mask: Mask | None = None) -> Call:
        """The call of query rows lo..hi against all keys; `mask` is the part's own where it was made before."""
        return replace(
            self,
            q=self.q[:, :, lo:hi],
            mask=mask or self.mask.rows(lo, hi),
            parameters=self._sliced("I", lo, hi),
        )

    def keys(self, lo: int, hi: int, mask: Mask | None = None) -> Call:
        """The call of all queries against key columns lo..hi; `mask` is the part's own where it was made before."""
        return replace(
            self,
            k=self.k[:, :, lo:hi],
            v=self.v[:, :, lo:hi],
            mask=mask or self.mask.keys(lo, hi),
            parameters=self._sliced("J", lo, hi),
        )

    def heads(self, lo: int, hi: int, mask: Mask | None = None) -> Call:
        """The call of query heads lo..hi with the key/value heads that they read; `mask` as in `rows`.

        Raises ValueError when the cut crosses a group of heads that share keys without covering it.
        """
        g = self.group
        whole = lo % g == 0 and hi % g == 0
        if not whole and lo // g != (hi - 1) // g:
            raise ValueError(f"heads {lo}..{hi} cross groups of {g} query heads that share keys")
        first, last = lo // g, (hi - 1) // g + 1
        by_head = self._sliced("H", lo, hi)
        by_group = replace(self, parameters=by_head)._sliced("G", first, last)
        return replace(
            self,
            q=self.q[:, lo:hi],
            k=self.k[:, first:last],
            v=self.v[:, first:last],
            mask=mask or self.mask.heads(lo, hi),
            parameters=by_group,
        )

    def batch(self, b: int) -> Call:
        """The call of one sequence of the batch, batch axis kept with size 1."""
        return replace(
            self,
            q=self.q[b : b + 1],
            k=self.k[b : b + 1],
            v=self.v[b : b + 1],
            mask=self.mask.batch(b),
            parameters=self._sliced("B", b, b + 1),
        )

    def map(self, change: Callable[[Tensor], Tensor], floating_only: bool = True) -> Call:
        """The call with `change` applied to q, k, v and every (floating) parameter; the mask is left alone."""
        return replace(
            self,
            q=change(self.q),
            k=change(self.k),
            v=change(self.v),
            parameters={
                name: change(p) if p.is_floating_point() or not floating_only else p
                for name, p in self.parameters.items()
            },
        )

    def to(self, device: torch.device | str) -> Call:
        """The call with every tensor, the mask's too, on `device`."""
        moved = self.map(lambda t: t.to(device), floating_only=False)
        return replace(moved, mask=self.mask.to(device))

    def expanded(self) -> Call:
        """The call with every G axis repeated to H, so that a definition need not think of groups."""
        g = self.group
        if g == 1:
            return self
        parameters = {
            name: p.repeat_interleave(g, _axis(self.axes[name], "G")) if "G" in self.axes[name].split() else p
            for name, p in self.parameters.items()
        }
        axes = {name: " ".join("H" if a == "G" else a for a in spec.split()) for name, spec in self.axes.items()}
        return replace(
            self,
            k=self.k.repeat_interleave(g, 1),
            v=self.v.repeat_interleave(g, 1),
            parameters=parameters,
            axes=axes,
        )

    def tensors(self) -> list[Tensor]:
        """q, k, v and the parameters, in a fixed order: what "the inputs" are when bytes are counted."""
        return [self.q, self.k, self.v, *(self.parameters[name] for name in sorted(self.parameters))]

    def _sliced(self, axis: str, lo: int, hi: int) -> dict[str, Tensor]:
        def cut(name: str, value: Tensor) -> Tensor:
            if axis not in self.axes[name].split():
                return value
            at = _axis(self.axes[name], axis)
            return value if value.shape[at] == 1 and axis == "B" else value.narrow(at, lo, hi - lo)

        return {name: cut(name, value) for name, value in self.parameters.items()}


def _axis(spec: str, letter: str) -> int:
    return spec.split().index(letter)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """[B, G, ...] -> [B, H, ...]: each key/value head repeated for the query heads that read it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def hide(logits: Tensor, visible: Tensor | None) -> Tensor:
    """Logits with -inf where `visible` (bool, True = may attend, broadcast) is False."""
    return logits if visible is None else logits.masked_fill(~visible, float("-inf"))


def softmax_rows(logits: Tensor) -> Tensor:
    """Softmax over keys; a row of -inf gives zeros, in value and in gradient.

    `torch.ops.aten._safe_softmax`, not the builtin: the builtin breaks graphs under torch.compile.
    """
    weights: Tensor = torch.ops.aten._safe_softmax(logits, -1)
    return weights


def softmax_for(mask: Mask) -> Callable[[Tensor], Tensor]:
    """Softmax over keys for logits under `mask`: torch's own where every query sees a key.

    The safe form is taken only where some query sees none: it costs a bool [B, H, I, J] more.
    """
    return softmax_rows if mask.has_empty_rows else _plain_softmax


def _plain_softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, -1)


def lse_rows(logits: Tensor) -> Tensor:
    """Log-sum-exp over keys [..., I], in float32 at least; a row of -inf gives -inf, its gradient zero, never NaN."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    empty = torch.isneginf(logits).all(-1)
    filled = logits.masked_fill(empty.unsqueeze(-1), 0.0)
    return torch.logsumexp(filled, -1).masked_fill(empty, float("-inf"))


def merge_by_lse(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Join results over disjoint sets of keys: out = sum_p out_p exp(lse_p - lse), lse = logsumexp_p lse_p.

    outs: [B, H, I, E] each, lses: [B, H, I] each. A part that saw no key (lse -inf) weighs nothing;
    a row that no part saw stays out 0, lse -inf, with finite zero gradients. In float32 at least.
    """
    stacked = torch.stack(list(lses))
    stacked = stacked.to(torch.promote_types(stacked.dtype, torch.float32))
    unseen = torch.isneginf(stacked)
    finite = stacked.masked_fill(unseen, torch.finfo(stacked.dtype).min)
    total = torch.logsumexp(finite, 0)
    weights = (finite - total).exp().masked_fill(unseen, 0.0)
    out = sum((w.unsqueeze(-1) * o for w, o in zip(weights, outs, strict=True)), start=torch.zeros(()))
    assert isinstance(out, Tensor)  # narrows the type: `pairs` counts tensors elsewhere
    return out.to(outs[0].dtype), total.masked_fill(unseen.all(0), float("-inf"))
