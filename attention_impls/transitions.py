"""States that fade, erase and are written to: S_j = (Diag(α_j) + b_j a_jᵀ) S_{j−1} + k_j v_jᵀ [D, E], out = qᵀ S.

The delta rules: what is held under a direction (−a) is read from the state before and taken away (b). α = exp(decay),
a number for each token or for each token and key dimension. With u_j = a_jᵀ S_{j−1}, the state after key i of a chunk
is Diag(α_1…i) S_0 + Σ_{j≤i} Diag(α_{j+1…i}) (b_j u_jᵀ + k_j v_jᵀ), and all u of a chunk come from one unit-triangular
solve: the WY form of Yang et al. 2024 (arXiv 2406.06484), its decays as in 2412.06464 and 2503.14456. Where what
is written goes to the direction that is erased (b = k), u + v is solved for, and half of the products are saved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_impls.call import Call
from attention_impls.delta_rule import Layout
from attention_impls.fading import kept_state, lives, pairs, products, segment_products
from attention_impls.states import Read, Recurrence, grouped, without


@dataclass(frozen=True, eq=False)
class Erasing:
    """decay [B, G, J, D|1], a, b [B, G, J, D], k the same or None where it is b, v [B, G, J, E]; 0 at hidden keys."""

    decay: Tensor
    a: Tensor
    b: Tensor
    k: Tensor | None
    v: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Erasing:
        """`change` made to each of them."""
        k = None if self.k is None else change(self.k)
        return Erasing(change(self.decay), change(self.a), change(self.b), k, change(self.v))

    def cut(self, lo: int, hi: int) -> Erasing:
        """Keys lo..hi."""
        return self.map(lambda x: x[:, :, lo:hi])


Source = Callable[[Call], Erasing]
"""A wide call -> its stream, hidden keys not yet hidden."""


class Transitions(Recurrence[Erasing, Tensor]):
    """The recurrence of the stream that `source` makes of a call; the state is [B, G, D, E]."""

    def __init__(self, source: Source, chunk: int) -> None:
        self.source, self.chunk = source, chunk

    def empty(self, call: Call) -> Tensor:
        """Zeros."""
        return call.k.new_zeros((*call.k.shape[:2], call.k.shape[-1], call.v.shape[-1]))

    def stream(self, call: Call, layout: Layout) -> Erasing:
        """What `source` makes, hidden keys zero."""
        return self.source(call).map(lambda x: without(x, layout))

    def step(self, stream: Erasing, layout: Layout, j: int, state: Tensor) -> tuple[Read, Tensor]:
        """One key after the other."""
        one, before = stream.cut(j, j + 1), kept_state(layout, j, state)
        erased = one.a @ before  # [B, G, 1, E]
        written = one.b.mT @ (erased + one.v) if one.k is None else one.b.mT @ erased + one.k.mT @ one.v
        after = before * one.decay.exp().mT + written
        return (lambda q, at: q @ after.unsqueeze(2)), after

    def piece(self, stream: Erasing, layout: Layout, lo: int, hi: int, state: Tensor) -> tuple[Read, Tensor]:
        """A chunk: u by one solve, then as states that only fade."""
        part = stream.cut(lo, hi)
        total = part.decay.cumsum(2)  # [B, G, C, D|1], log of what remains since the chunk began
        before = pad(total[:, :, :-1], (0, 0, 1, 0))  # the same without the key's own
        alive, carries = lives(layout, lo, hi, part.v.device)
        carried, strictly = total.exp() * carries, alive.tril(-1)

        def among(q: Tensor, k: Tensor, reading: Tensor, alive: Tensor) -> Tensor:
            return products(q, k, reading, total, alive)

        def erases(k: Tensor) -> Tensor:
            return among(part.a.unsqueeze(2), k, before, strictly).squeeze(2)

        wanted = (part.a * before.exp() * carries) @ state
        wanted = wanted + (part.v if part.k is None else erases(part.k) @ part.v)
        u = _solved(erases(part.b), wanted, part.v.dtype)
        writes = [(part.b, u)] if part.k is None else [(part.b, u), (part.k, part.v)]

        def read(q: Tensor, at: Tensor) -> Tensor:
            rows, seen = total[:, :, at], alive[..., at, :]
            out = (q * carried[:, :, None, at]) @ state.unsqueeze(2)
            for k, v in writes:
                out = out + among(q, k, rows, seen) @ v.unsqueeze(2)
            return out

        last = (total[:, :, -1:] - total).exp() * alive[..., -1, :, None]
        after = state * carried[:, :, -1:].mT
        for k, v in writes:
            after = after + (k * last).mT @ v
        return read, after

    def parallel(self, call: Call, layout: Layout) -> Tensor:
        """A materialised, [B, G, H/G, I, J]: the products of queries and keys, times an inverse of those of keys."""
        stream = self.stream(call, layout)
        at, alive = pairs(layout, call.v.device)
        q = grouped(call.q, call)
        keys, all_alive = _before_each(layout, call.v.device)
        decay = stream.decay
        erased = segment_products(stream.a.unsqueeze(2), stream.b, decay, keys, all_alive).squeeze(2)  # [B, G, J, J]
        read = segment_products(q, stream.b, decay, at, alive)
        through = torch.linalg.solve_triangular(-erased.unsqueeze(2), read, upper=False, left=False, unitriangular=True)
        if stream.k is not None:
            written = segment_products(stream.a.unsqueeze(2), stream.k, decay, keys, all_alive)
            through = segment_products(q, stream.k, decay, at, alive) + through @ written
        out: Tensor = through @ stream.v.unsqueeze(2)
        return out

    def peek(self, q: Tensor, state: Tensor) -> Tensor:
        """qᵀ S."""
        return q @ state.unsqueeze(2)


def _solved(erased: Tensor, wanted: Tensor, dtype: torch.dtype) -> Tensor:
    """(I − erased)^(−1) wanted, erased strictly lower. Autocast may have rounded them: half precision has no solver."""
    u: Tensor = torch.linalg.solve_triangular(-erased.to(dtype), wanted.to(dtype), upper=False, unitriangular=True)
    return u


def _before_each(layout: Layout, device: torch.device) -> tuple[Tensor, Tensor]:
    """As `fading.pairs`, for keys that read the state before themselves."""
    at = torch.arange(layout.keys, device=device) - 1
    alive = (torch.arange(layout.keys, device=device) <= at.unsqueeze(-1))[None, None]
    if layout.document is not None:
        alive = alive & (layout.document.unsqueeze(-1) == layout.document.unsqueeze(-2))
    return at, alive
