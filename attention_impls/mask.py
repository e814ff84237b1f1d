"""What each query may see, in absolute positions: boolean, countable, sliceable.

A float bias is a Parameter, never a mask. True means "may attend". Positions are absolute: query row
r of the call stands at `q_start + r`, key column c at `k_start + c`, so a part of a call still knows
where it lies. Nothing is guessed from lengths: causal with unequal lengths needs `q_start` to say
whether the corner is top-left (0) or bottom-right (kv_len - q_len).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

Pattern = Callable[[Tensor, Tensor], Tensor]
"""(i, j) absolute query and key positions, broadcast against each other -> bool."""

COUNT_BLOCK = 2**24  # elements of a mask looked at together when pairs have no closed form: 16 MiB of bool


CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys each query sees.

    q_start: int, [B] or [B, I] (per token). k_start: int. key_lengths: [B], counted in absolute key
    positions. q_segments [B, I] and k_segments [B, J]: a query sees only keys of its own segment.
    dense: [1|B, 1|H, I, J] bool. pattern: (i, j) -> bool on absolute positions. All parts are joined
    by "and". `home` is where a mask without tensors is built. Raises ValueError for shapes that do not fit, naming
    the axes.
    """

    q_len: int
    kv_len: int
    causal: bool = False
    q_start: int | Tensor = 0
    k_start: int = 0
    key_lengths: Tensor | None = None
    q_segments: Tensor | None = None
    k_segments: Tensor | None = None
    dense: Tensor | None = None
    pattern: Pattern | None = None
    home: torch.device = CPU

    def __post_init__(self) -> None:
        if (self.q_segments is None) != (self.k_segments is None):
            raise ValueError("a mask with segments needs both q_segments [B, I] and k_segments [B, J]")
        if self.dense is not None:
            if self.dense.dim() != 4 or self.dense.shape[-2:] != (self.q_len, self.kv_len):
                raise ValueError(
                    f"a dense mask must be [1|B, 1|H, I, J] with I={self.q_len}, J={self.kv_len}; "
                    f"got shape {tuple(self.dense.shape)}"
                )
            if self.dense.dtype != torch.bool:
                raise ValueError(f"a dense mask is bool (True = may attend); got {self.dense.dtype}")
        if self.key_lengths is not None and self.key_lengths.dim() != 1:
            raise ValueError(f"key_lengths must be [B]; got shape {tuple(self.key_lengths.shape)}")

    @property
    def full(self) -> bool:
        """True when nothing is hidden by construction (see `simplified` for masks that hide nothing in fact)."""
        return not (
            self.causal
            or self.key_lengths is not None
            or self.q_segments is not None
            or self.dense is not None
            or self.pattern is not None
        )

    def kinds(self) -> frozenset[str]:
        """The words of `Support.masks` that this mask needs: full, causal, key_lengths, segments, dense, pattern."""
        words = {
            "causal": self.causal,
            "key_lengths": self.key_lengths is not None,
            "segments": self.q_segments is not None,
            "dense": self.dense is not None,
            "pattern": self.pattern is not None,
        }
        return frozenset(word for word, needed in words.items() if needed) or frozenset({"full"})

    def start(self) -> str:
        """The word of `Support.starts`: zero, aligned (last query at last key), any, per_sequence, per_token."""
        if isinstance(self.q_start, Tensor):
            return "per_sequence" if self.q_start.dim() == 1 else "per_token"
        offset = self.q_start - self.k_start
        if offset == 0:
            return "zero"
        return "aligned" if offset == self.kv_len - self.q_len else "any"

    def q_positions(self, rows: Tensor) -> Tensor:
        """Absolute positions of query rows: [R], or [B, R] where the start differs per sequence."""
        if not isinstance(self.q_start, Tensor):
            return self.q_start + rows
        start = self.q_start.to(rows.device)
        return start[:, None] + rows if start.dim() == 1 else start[:, rows] + rows

    def allows(self, b: Tensor, h: Tensor, r: Tensor, c: Tensor) -> Tensor:
        """Elementwise: may query row r see key column c, in batch b and head h (index tensors that broadcast).

        One text for dense masks, FlexAttention's mask_mod and the oracle.
        """
        start: int | Tensor = self.q_start
        if isinstance(start, Tensor):
            start = start[b] if start.dim() == 1 else start[b, r]
        i, j = start + r, self.k_start + c
        seen = torch.ones_like(r == c)
        if self.causal:
            seen = seen & (j <= i)
        if self.key_lengths is not None:
            seen = seen & (j < self.key_lengths[b])
        if self.q_segments is not None and self.k_segments is not None:
            seen = seen & (self.q_segments[b, r] == self.k_segments[b, c])
        if self.dense is not None:
            bb = b if self.dense.shape[0] > 1 else torch.zeros_like(b)
            hh = h if self.dense.shape[1] > 1 else torch.zeros_like(h)
            seen = seen & self.dense[bb, hh, r, c]
        if self.pattern is not None:
            seen = seen & self.pattern(i, j)
        return seen

    @property
    def shape(self) -> tuple[int, int]:
        """(B, H) of the boolean form: 1 where batches or heads do not differ."""
        batch = max(
            self.key_lengths.shape[0] if self.key_lengths is not None else 1,
            self.q_segments.shape[0] if self.q_segments is not None else 1,
            self.q_start.shape[0] if isinstance(self.q_start, Tensor) else 1,
            self.dense.shape[0] if self.dense is not None else 1,
        )
        return batch, self.dense.shape[1] if self.dense is not None else 1

    def visible(self, rows: Tensor | None = None) -> Tensor | None:
        """The boolean form [1|B, 1|H, R, J] of all rows or of those named; None when everything is visible."""
        if self.full:
            return None
        device = self.device
        batch, heads = self.shape
        r = torch.arange(self.q_len, device=device) if rows is None else rows.to(device)
        b = torch.arange(batch, device=device).view(-1, 1, 1, 1)
        h = torch.arange(heads, device=device).view(1, -1, 1, 1)
        c = torch.arange(self.kv_len, device=device).view(1, 1, 1, -1)
        return self.allows(b, h, r.view(1, 1, -1, 1), c).expand(batch, heads, len(r), self.kv_len)

    @property
    def device(self) -> torch.device:
        """Where the mask's tensors lie, and its boolean form; where it was moved to last when it has none."""
        tensors = (self.key_lengths, self.q_segments, self.dense, self.q_start)
        return next((t.device for t in tensors if isinstance(t, Tensor)), self.home)

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its tensors, and its boolean form, on `device`."""

        def move(value: Tensor | None) -> Tensor | None:
            return value if value is None else value.to(device)

        return replace(
            self,
            q_start=self.q_start.to(device) if isinstance(self.q_start, Tensor) else self.q_start,
            key_lengths=move(self.key_lengths),
            q_segments=move(self.q_segments),
            k_segments=move(self.k_segments),
            dense=move(self.dense),
            home=torch.device(device),
        )

    def rows(self, lo: int, hi: int) -> Mask:
        """The mask of query rows lo..hi: absolute positions are kept."""
        per_token = isinstance(self.q_start, Tensor) and self.q_start.dim() == 2
        start: int | Tensor = self.q_start + lo
        if per_token and isinstance(self.q_start, Tensor):
            start = self.q_start[:, lo:hi] + lo
        return replace(
            self,
            q_len=hi - lo,
            q_start=start,
            q_segments=None if self.q_segments is None else self.q_segments[:, lo:hi],
            dense=None if self.dense is None else self.dense[:, :, lo:hi],
        )

    def keys(self, lo: int, hi: int) -> Mask:
        """The mask of key columns lo..hi: absolute positions are kept."""
        return replace(
            self,
            kv_len=hi - lo,
            k_start=self.k_start + lo,
            k_segments=None if self.k_segments is None else self.k_segments[:, lo:hi],
            dense=None if self.dense is None else self.dense[:, :, :, lo:hi],
        )

    def heads(self, lo: int, hi: int) -> Mask:
        """The mask of query heads lo..hi."""
        if self.dense is None or self.dense.shape[1] == 1:
            return self
        return replace(self, dense=self.dense[:, lo:hi])

    def batch(self, b: int) -> Mask:
        """The mask of one sequence of the batch."""

        def one(value: Tensor | None) -> Tensor | None:
            return value if value is None or value.shape[0] == 1 else value[b : b + 1]

        start = self.q_start
        return replace(
            self,
            q_start=start[b : b + 1] if isinstance(start, Tensor) and start.shape[0] > 1 else start,
            key_lengths=one(self.key_lengths),
            q_segments=one(self.q_segments),
            k_segments=one(self.k_segments),
            dense=one(self.dense),
        )

    def simplified(self) -> Mask:
        """Without the parts that hide nothing here, so that a fast path is taken where it is right."""
        mask = self
        last_key = self.k_start + self.kv_len - 1
        if mask.causal and self.q_len and self.first_query() >= last_key:
            mask = replace(mask, causal=False)
        if mask.key_lengths is not None and bool((mask.key_lengths > last_key).all()):
            mask = replace(mask, key_lengths=None)
        if mask.q_segments is not None and mask.k_segments is not None and self.q_len and self.kv_len:
            first = mask.q_segments[:, :1]
            if bool((mask.q_segments == first).all()) and bool((mask.k_segments == first).all()):
                mask = replace(mask, q_segments=None, k_segments=None)
        if mask.dense is not None and mask.dense.device.type != "meta" and bool(mask.dense.all()):
            mask = replace(mask, dense=None)
        return mask

    def last_visible(self) -> int:
        """One past the last key column that any query of this mask may see, by causality and lengths alone."""
        end = self.kv_len
        if self.causal and self.q_len:
            end = min(end, self.last_query() - self.k_start + 1)
        if self.key_lengths is not None and self.key_lengths.numel():
            end = min(end, int(self.key_lengths.max()) - self.k_start)
        return max(end, 0)

    def pairs(self, batch: int, heads: int) -> int:
        """How many (query, key) pairs are visible over `batch` sequences and `heads` heads, exactly."""
        if not self.q_len or not self.kv_len or not batch or not heads:
            return 0
        simple = self.dense is None and self.pattern is None and self.q_segments is None
        if simple and not isinstance(self.q_start, Tensor):
            return self._closed_pairs(batch) * heads
        mask_batch, mask_heads = self.shape
        return self._counted_pairs() * (batch // mask_batch) * (heads // mask_heads)

    @cached_property
    def has_empty_rows(self) -> bool:
        """True when some query sees no key (or may see none: a dense mask on the meta device)."""
        if self.full or not self.q_len:
            return self.kv_len == 0
        if self.device.type == "meta":
            return True
        if self.pattern is None and self.dense is None and self.q_segments is None:
            short = self.key_lengths is not None and bool((self.key_lengths <= self.k_start).any())
            return short or (self.causal and self.first_query() < self.k_start)
        return any(bool((~block.any(-1)).any()) for block in self._blocks())

    def first_query(self) -> int:
        """The smallest absolute position of any query."""
        if isinstance(self.q_start, Tensor):
            return int(self.q_positions(torch.arange(self.q_len, device=self.q_start.device)).min())
        return self.q_start

    def last_query(self) -> int:
        """The largest absolute position of any query."""
        if isinstance(self.q_start, Tensor):
            return int(self.q_positions(torch.arange(self.q_len, device=self.q_start.device)).max())
        return self.q_start + self.q_len - 1

    def _closed_pairs(self, batch: int) -> int:
        """Pairs of one head for causal and lengths: row r sees min(q_start + r + 1, length) - k_start keys."""
        end = self.k_start + self.kv_len
        lengths = [end] * batch
        if self.key_lengths is not None:
            lengths = [min(int(n), end) for n in self.key_lengths.expand(batch)]
        return sum(self._sequence_pairs(max(length - self.k_start, 0)) for length in lengths)

    def _sequence_pairs(self, keys: int) -> int:
        if not self.causal:
            return self.q_len * keys
        assert not isinstance(self.q_start, Tensor)  # narrows the type: `pairs` counts tensors elsewhere
        first = self.q_start - self.k_start + 1  # what row 0 would see without a limit
        growing_from = min(max(1 - first, 0), self.q_len)  # rows before it see nothing
        growing_to = min(max(keys - first, growing_from), self.q_len)  # rows after it see all `keys`
        grown = growing_to - growing_from
        ramp = grown * (first + growing_from) + grown * (grown - 1) // 2
        return ramp + (self.q_len - growing_to) * keys

    def _blocks(self) -> Iterator[Tensor]:
        batch, heads = self.shape
        step = max(1, COUNT_BLOCK // max(1, batch * heads * self.kv_len))
        for lo in range(0, self.q_len, step):
            block = self.visible(torch.arange(lo, min(lo + step, self.q_len), device=self.device))
            if block is not None:
                yield block

    def _counted_pairs(self) -> int:
        return sum(int(block.sum()) for block in self._blocks())


def full_mask(q_len: int, kv_len: int) -> Mask:
    """A mask that hides nothing."""
    return Mask(q_len=q_len, kv_len=kv_len)
