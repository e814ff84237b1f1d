"""Cuts a call's I × J rectangle of scores into tiles: the hidden ones left out, the visible ones told apart.

Every decision about the mask is made here, once, in `prepare`; a kernel only walks the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from attention_impls.mask import Mask


@dataclass(frozen=True, eq=False)
class Tile:
    """Key columns lo..hi for one range of query rows; visible [1|B, 1|H, R, hi - lo], None when all of it is."""

    lo: int
    hi: int
    visible: Tensor | None


@dataclass(frozen=True, eq=False)
class Band:
    """Query rows lo..hi and the tiles of keys that some of them see."""

    lo: int
    hi: int
    tiles: tuple[Tile, ...]


def bands(mask: Mask, q_block: int, k_block: int) -> tuple[Band, ...]:
    """The tiles of `mask`, at most q_block rows by k_block columns; the boolean forms lie on the mask's device."""
    return tuple(Band(lo, hi, tuple(_tiles(mask.rows(lo, hi), k_block))) for lo, hi in spans(mask.q_len, q_block))


def spans(length: int, block: int) -> list[tuple[int, int]]:
    """0..length in steps of `block`, the last one shorter."""
    return list(pairwise([*range(0, length, block), length]))


def checked(name: str, size: int) -> int:
    """`size`, an option called `name`. Raises ValueError below 1."""
    if size < 1:
        raise ValueError(f"option {name} must be at least 1; got {size}")
    return size


def _tiles(rows: Mask, block: int) -> Iterator[Tile]:
    for lo, hi in spans(rows.last_visible(), block):
        tile = rows.keys(lo, hi).simplified()
        visible = tile.visible()
        if visible is None or bool(visible.all()):
            yield Tile(lo, hi, None)
        elif bool(visible.any()):
            yield Tile(lo, hi, visible.contiguous())
