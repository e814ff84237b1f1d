"""States that fade and are added to: S_j = Diag(α_j) S_{j−1} + k_j v_jᵀ [D, E], out_i = scale · q_iᵀ S_i.

α_j = exp(decay_j) in (0, 1]: a number for each head, for each token, or for each token and key dimension. As a matrix
A_ij = scale · Σ_d q_id k_jd Π_{j<l≤i} α_ld. No form takes the exponential of a positive number: inside a chunk,
and in the parallel form, decays stand as differences of sums from the later token to the earlier one, so that neither
strong decay nor long sequences overflow.
Source of the forms: Sun et al. 2023 (arXiv 2307.08621); per key dimension Yang et al. 2023 (2312.06635), whose
secondary chunks are replaced here by chunks small enough for a term [C, C, D].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attention_impls.call import Call
from attention_impls.delta_rule import Layout
from attention_impls.fading import kept_state, lives, pairs, products, segment_products
from attention_impls.states import Read, Recurrence, by_pieces, documents, grouped, without

SMALL_CHUNK = 16  # where every key dimension decays by itself: a chunk holds C · C · D numbers

Source = Callable[[Call], tuple[Tensor, Tensor]]
"""A wide call -> its keys [B, G, J, D] and log-decays, [1|B, G, J|1, D|1]."""

Definition = Callable[[Call, Tensor], Tensor]
"""(call with heads expanded, rows [R]) -> rows of A, or of the output."""


@dataclass(frozen=True, eq=False)
class Faded:
    """k [B, G, J, D], v [B, G, J, E] and log-decays [1|B, G, J, D|1], all 0 at hidden keys."""

    k: Tensor
    v: Tensor
    decay: Tensor

    def cut(self, lo: int, hi: int) -> Faded:
        """Keys lo..hi."""
        return Faded(self.k[:, :, lo:hi], self.v[:, :, lo:hi], self.decay[:, :, lo:hi])


class Decayed(Recurrence[Faded, Tensor]):
    """The recurrence of keys and decays that `source` makes of a call; the state is [B, G, D, E]."""

    def __init__(self, source: Source, chunk: int) -> None:
        self.source, self.chunk = source, chunk

    def empty(self, call: Call) -> Tensor:
        """Zeros."""
        return call.k.new_zeros((*call.k.shape[:2], call.k.shape[-1], call.v.shape[-1]))

    def stream(self, call: Call, layout: Layout) -> Faded:
        """Keys, values and decays, hidden ones zero."""
        k, decay = self.source(call)
        decay = decay.expand(-1, -1, call.k.shape[2], -1)
        return Faded(without(k, layout), without(call.v, layout), without(decay, layout))

    def step(self, stream: Faded, layout: Layout, j: int, state: Tensor) -> tuple[Read, Tensor]:
        """S_j = Diag(α_j) S_{j−1} + k_j v_jᵀ."""
        one = stream.cut(j, j + 1)
        after = kept_state(layout, j, state) * one.decay.exp().mT + one.k.mT @ one.v
        return (lambda q, at: q @ after.unsqueeze(2)), after

    def piece(self, stream: Faded, layout: Layout, lo: int, hi: int, state: Tensor) -> tuple[Read, Tensor]:
        """The state before, faded to each row, and one triangle of products among the keys of the chunk."""
        part = stream.cut(lo, hi)
        total = part.decay.cumsum(2)  # [1|B, G, C, D|1], log of what remains since the chunk began
        alive, carries = lives(layout, lo, hi, part.k.device)
        carried = total.exp() * carries

        def read(q: Tensor, at: Tensor) -> Tensor:
            new = products(q, part.k, total[:, :, at], total, alive[..., at, :]) @ part.v.unsqueeze(2)
            return (q * carried[:, :, None, at]) @ state.unsqueeze(2) + new

        last = (total[:, :, -1:] - total).exp() * alive[..., -1, :, None]
        after = state * carried[:, :, -1:].mT + (part.k * last).mT @ part.v
        return read, after

    def parallel(self, call: Call, layout: Layout) -> Tensor:
        """A materialised, [B, G, H/G, I, J]."""
        stream = self.stream(call, layout)
        at, alive = pairs(layout, call.k.device)
        scores = segment_products(grouped(call.q, call), stream.k, stream.decay, at, alive)
        return scores @ stream.v.unsqueeze(2)

    def peek(self, q: Tensor, state: Tensor) -> Tensor:
        """qᵀ S."""
        return q @ state.unsqueeze(2)


def per_head(call: Call) -> tuple[Tensor, Tensor]:
    """`Source` of a parameter decay [G]: the same for every token."""
    return call.k, call.parameters["decay"].view(1, -1, 1, 1)


def per_token(call: Call) -> tuple[Tensor, Tensor]:
    """`Source` of a parameter decay [B, G, J]."""
    return call.k, call.parameters["decay"].unsqueeze(-1)


def per_dimension(call: Call) -> tuple[Tensor, Tensor]:
    """`Source` of a parameter decay [B, G, J, D]."""
    return call.k, call.parameters["decay"]


def faster(
    rule: Recurrence[Any, Any], weights: Definition, why_not: Callable[[Call], str | None] = documents
) -> Definition:
    """`Variant.oracle`: the chunkwise form on long sequences; where it cannot go, the rows of A."""
    return faster_output(rule, lambda call, rows: weights(call, rows) @ call.v, why_not)


def faster_output(
    rule: Recurrence[Any, Any], output: Definition, why_not: Callable[[Call], str | None] = documents
) -> Definition:
    """As `faster`, for a mechanism that has no A."""

    def oracle(call: Call, rows: Tensor) -> Tensor:
        if isinstance(call.mask.q_start, Tensor) or why_not(call):
            return output(call, rows)
        return by_pieces(rule, rule.layout(call), call, rule.chunk).out[:, :, rows]

    return oracle


def scale_one(head_dim: int) -> float:
    """The scale of mechanisms whose papers have none."""
    return 1.0
