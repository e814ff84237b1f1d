"""What is left of a key's trace at a later token: sums of log-decays, documents, and products of queries and keys.

Decays stand only as differences of sums from the later token to the earlier one, which are never positive. Shared by
`attention_impls.decayed` and `attention_impls.transitions`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_impls.delta_rule import Layout


def _fresh(layout: Layout, j: int) -> Tensor | None:
    """[B, 1, 1, 1]: where key j begins a document, before which the state is emptied."""
    if layout.document is None or j == 0:
        return None
    return (layout.document[..., j] != layout.document[..., j - 1])[..., None, None]


def kept_state(layout: Layout, j: int, state: Tensor) -> Tensor:
    """The state before key j, emptied where j begins a document."""
    new = _fresh(layout, j)
    return state if new is None else state.masked_fill(new, 0.0)


def lives(layout: Layout, lo: int, hi: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """What of keys lo..hi is alive at each of them [1|B, 1, C, C], and where the state before is [1|B, 1, C, 1]."""
    size = hi - lo
    alive = torch.ones((1, 1, size, size), dtype=torch.bool, device=device).tril()
    if layout.document is None:
        return alive, torch.ones((1, 1, size, 1), dtype=torch.bool, device=device)
    own = layout.document[..., lo:hi]  # [B, 1, C]
    carries = (own == layout.document[..., max(lo - 1, 0), None]).unsqueeze(-1)
    return alive & (own.unsqueeze(-1) == own.unsqueeze(-2)), carries


def pairs(layout: Layout, device: torch.device) -> tuple[Tensor, Tensor]:
    """The key [I] after which each row reads (negative before the first), and what is alive there [1|B, 1, I, J]."""
    at = (torch.arange(layout.rows, device=device) + layout.offset).clamp_max(layout.keys - 1)
    alive = (torch.arange(layout.keys, device=device) <= at.unsqueeze(-1))[None, None]
    if layout.document is not None:
        rows = layout.document[..., at.clamp_min(0)]
        alive = alive & (rows.unsqueeze(-1) == layout.document.unsqueeze(-2))
    return at, alive


def products(q: Tensor, k: Tensor, reading: Tensor, writing: Tensor, alive: Tensor) -> Tensor:
    """Σ_d q_rd k_cd e^(reading_rd − writing_cd) where alive, 0 elsewhere: [B, G, N, R, C].

    q [B, G, N, R, D], k [B, G, C, D], reading [1|B, G, R, D|1], writing [1|B, G, C, D|1], alive [1|B, 1, R, C].
    """
    gone = ~alive.unsqueeze(-1)
    fade = (reading.unsqueeze(-2) - writing.unsqueeze(-3)).masked_fill(gone, float("-inf")).exp()  # [.., R, C, D|1]
    if fade.shape[-1] == 1:
        return (q @ k.unsqueeze(2).mT) * fade.squeeze(-1).unsqueeze(2)
    faded = (k.unsqueeze(2) * fade).mT  # [B, G, R, D, C]
    return (q.transpose(2, 3) @ faded).transpose(2, 3)


def segment_products(q: Tensor, k: Tensor, decay: Tensor, at: Tensor, alive: Tensor) -> Tensor:
    """As `products` of whole rows [B, G, N, I, D] with whole keys, from the log-decays [1|B, G, J, D|1] themselves.

    The sum from each key to each row is taken backwards from the row, so that near keys lose nothing to the
    length of the sequence; key dimensions that decay by themselves are added one after another: O(I·J) a head.
    """
    if decay.shape[-1] == 1:
        return (q @ k.unsqueeze(2).mT) * segments(decay[..., 0], at, alive).exp().unsqueeze(2)
    scores = q.new_zeros((*q.shape[:-1], k.shape[2]))
    for d in range(decay.shape[-1]):
        fade = segments(decay[..., d], at, alive).exp()
        scores = scores + q[..., d, None] * (k[..., d].unsqueeze(-2) * fade).unsqueeze(2)
    return scores


def segments(decay: Tensor, at: Tensor, alive: Tensor) -> Tensor:
    """Σ_{j<l≤i} log α_l [1|B, G, I, J] of log-decays [1|B, G, J] where alive, -inf elsewhere."""
    keys = torch.arange(decay.shape[-1], device=decay.device)
    upto = decay.unsqueeze(-2).masked_fill(keys > at.unsqueeze(-1), 0.0)  # [1|B, G, I, J]
    from_key = upto.flip(-1).cumsum(-1).flip(-1)
    return pad(from_key[..., 1:], (0, 1)).masked_fill(~alive, float("-inf"))
