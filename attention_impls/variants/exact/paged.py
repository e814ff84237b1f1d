"""softmax.paged: keys and values lie scattered in pages; each sequence finds its own through a table of blocks.

Exact. The store holds `page` tokens a page, all heads of a token together; logical page n of sequence b is
physical page table[b, n], and the table is a shuffle drawn once, so that nothing works that reads pages in order.
Attention looks up `together` logical pages of every sequence at a time and takes them in as the online form does:
no sequence's keys are ever laid side by side whole. The table is a matter of layout; the output cannot depend on it.

A whole run writes all keys into the store first. `prefill` writes those before the first query, `resume` the
rest and then reads: that is how a server decodes, and where the cost is that of the mechanism.
Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention",
arXiv 2309.06180.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attention_impls import inputs
from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Output, Run, Support
from attention_impls.running import Piece, output, over_pieces
from attention_impls.tiling import Tile, bands, checked
from attention_impls.variants.scores.softmax import SOFTMAX


def paged(page: int = 16, together: int = 32) -> Implementation:
    """softmax over pages of `page` keys, `together` of them looked up at a time. Raises ValueError below 1."""
    reach = checked("page", page) * checked("together", together)

    def prepare(call: Call, lse: bool) -> Run:
        pages, tiles = _Pages.of(call, page), _tiles(call, reach)

        def run(call: Call) -> Output:
            stores = [pages.write(pages.fresh(t), t, 0) for t in (call.k, call.v)]
            return output(over_pieces(call, pages.read(stores, tiles)), lse)

        return run

    return Implementation(
        "paged",
        SOFTMAX,
        prepare,
        Support(lse="differentiable"),
        configure=paged,
        prefill=partial(_prefill, page),
        resume=partial(_resume, page, reach),
        growth=Growth(bytes=1),
    )


@dataclass(frozen=True, eq=False)
class _Pages:
    """table [B, N]: the physical page of each logical one. slots [B, J]: where each token lies in the store."""

    size: int
    table: Tensor
    slots: Tensor

    @staticmethod
    def of(call: Call, size: int) -> _Pages:
        """The pages of a call, shuffled over all sequences: decided by its lengths alone."""
        batch, keys = call.k.shape[0], call.k.shape[2]
        count = -(-keys // size)
        shuffled = torch.randperm(batch * count, generator=inputs.generator(f"pages/{batch}/{count}"))
        table = shuffled.view(batch, count).to(call.k.device)
        token = torch.arange(keys, device=table.device)
        return _Pages(size, table, table[:, token // size] * size + token % size)

    def fresh(self, like: Tensor) -> Tensor:
        """An unwritten store [pages · size, G, X] for keys or values [B, G, J, X]."""
        return like.new_empty((self.table.numel() * self.size, like.shape[1], like.shape[3]))

    def write(self, store: Tensor, tokens: Tensor, first: int) -> Tensor:
        """The store with `tokens` [B, G, C, X] written into it, the first of them number `first` of its sequence."""
        slots = self.slots[:, first : first + tokens.shape[2]]
        return store.index_copy_(0, slots.reshape(-1), tokens.transpose(1, 2).flatten(0, 1))

    def read(self, stores: Sequence[Tensor], tiles: tuple[Tile, ...]) -> Iterator[Piece]:
        """The logical pages of one tile after the other; what a last page holds beyond its keys is not attended to."""
        for tile in tiles:
            at = self.table[:, tile.lo // self.size : -(-tile.hi // self.size)]
            k, v = (self._found(store, at)[:, :, : tile.hi - tile.lo] for store in stores)
            yield k, v, tile.visible

    def _found(self, store: Tensor, at: Tensor) -> Tensor:
        """Physical pages `at` [B, N] of a store, as [B, G, N · size, X]."""
        pages: Tensor = store.unflatten(0, (self.table.numel(), self.size))
        return pages[at].flatten(1, 2).transpose(1, 2)


def _tiles(call: Call, reach: int) -> tuple[Tile, ...]:
    """What is looked up at a time: `reach` keys, whole pages, for all queries; left out where no query sees any."""
    mask = call.mask.simplified().to(call.q.device)
    (rows,) = bands(mask, mask.q_len, reach)
    return rows.tiles


def _before_queries(call: Call) -> int:
    """How many keys stand before the first query of the call: they are the past when it decodes."""
    return min(max(call.mask.first_query() - call.mask.k_start, 0), call.k.shape[2])


def _prefill(page: int, call: Call) -> list[Tensor]:
    """The stores of keys and of values, written up to the call's first query."""
    pages, past = _Pages.of(call, page), _before_queries(call)
    return [pages.write(pages.fresh(t), t[:, :, :past], 0) for t in (call.k, call.v)]


def _resume(page: int, reach: int, call: Call, cache: list[Tensor]) -> Output:
    """Writes the keys from the first query on into the stores where they lie, and attends."""
    pages, past = _Pages.of(call, page), _before_queries(call)
    stores = [pages.write(s, t[:, :, past:], past) for s, t in zip(cache, (call.k, call.v), strict=True)]
    return output(over_pieces(call, pages.read(stores, _tiles(call, reach))), False)


IMPLEMENTATIONS = [paged()]
