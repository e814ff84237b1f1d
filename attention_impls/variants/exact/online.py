"""softmax.online: one pass over the keys, `block` of them at a time, with a running maximum and a running sum.

Exact. All queries meet one block of keys after the other; no row of A is ever whole. Forward memory
O(I · block) beside the output. Autograd keeps every block's weights for the backward, O(I·J): `tiles`, `flash1`
and `rabe_staats` are the forms that save there too. With block 1 it is the algorithm of the paper, one key at a
time, its output summed in the same pass. The step itself is `running.absorb`.

Sources: Milakov & Gimelshein 2018, arXiv 1805.02867 (maximum and sum in one pass); Rabe & Staats 2021,
arXiv 2112.05682 (the output summed in the same pass). Keys that no query sees are left out.
"""

from __future__ import annotations

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Output, Run, Support
from attention_impls.running import Piece, output, over_pieces
from attention_impls.tiling import Tile, bands, checked
from attention_impls.variants.scores.softmax import SOFTMAX


def online(block: int = 64) -> Implementation:
    """softmax over blocks of `block` keys in one pass. Raises ValueError for a block below 1."""
    checked("block", block)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        (rows,) = bands(mask, mask.q_len, block)  # one band: every query at once

        def run(call: Call) -> Output:
            return output(over_pieces(call, (_piece(call, tile) for tile in rows.tiles)), lse)

        return run

    return Implementation(
        "online", SOFTMAX, prepare, Support(lse="differentiable"), configure=online, growth=Growth(bytes=1)
    )


def _piece(call: Call, tile: Tile) -> Piece:
    return call.k[:, :, tile.lo : tile.hi], call.v[:, :, tile.lo : tile.hi], tile.visible


IMPLEMENTATIONS = [online()]
