"""softmax.ulysses: tokens over `ranks` machines outside attention, heads over them inside, simulated in one process.

Exact. Every rank comes with all heads of its run of tokens. One all-to-all gives each rank all tokens of its
share of the heads; it attends to them as one machine would, in the naive form; a second one takes the outputs
back. Unlike in a ring every token moves once whatever the number of ranks, and there can be no more ranks than
key/value heads: their number must divide both kinds of heads. What is simulated is who holds what, copies
included; the time of messages is not in it.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv 2309.14509.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Implementation, Output, Run, Support
from attention_impls.through import softmax_kernel
from attention_impls.tiling import checked
from attention_impls.variants.exact.ring import contiguous
from attention_impls.variants.scores.softmax import SOFTMAX


def ulysses(ranks: int = 4) -> Implementation:
    """softmax with heads over `ranks` machines. Raises ValueError below 1."""
    checked("ranks", ranks)

    def prepare(call: Call, lse: bool) -> Run:
        mask, inner = call.mask.simplified(), softmax_kernel("naive")
        masks = [mask.heads(own.start, own.stop) for own in _shares(call.q.shape[1], ranks)]
        kernels = [inner.prepare(_of_rank(call, ranks, r), lse) for r in range(ranks)]

        def run(call: Call) -> Output:
            q, k, v = (to_heads(_sharded(t, ranks)) for t in (call.q, call.k, call.v))
            held = zip(q, k, v, masks, kernels, strict=True)
            answers = [kernel(replace(call, q=q, k=k, v=v, mask=mask)) for q, k, v, mask, kernel in held]
            out = torch.cat(to_tokens([answer.out for answer in answers]), 2)
            lses = [answer.lse for answer in answers if answer.lse is not None]
            return Output(out, torch.cat(to_tokens(lses), 2) if lse else None)

        return run

    def why_not(call: Call) -> str | None:
        if call.q.shape[1] % ranks == 0 and call.k.shape[1] % ranks == 0:
            return None
        return f"cannot share {call.q.shape[1]} query and {call.k.shape[1]} key/value heads among {ranks} ranks"

    support = Support(lse="differentiable", why_not=why_not)
    return Implementation("ulysses", SOFTMAX, prepare, support, configure=ulysses)


def to_heads(parts: Sequence[Tensor]) -> list[Tensor]:
    """The first all-to-all: each rank's tokens [B, H, I/P, X] -> each rank's heads [B, H/P, I, X]."""
    ranks = len(parts)
    sent = [part.unflatten(1, (ranks, -1)) for part in parts]  # raises where the heads cannot be shared
    return [torch.cat([part[:, to] for part in sent], 2) for to in range(ranks)]


def to_tokens(parts: Sequence[Tensor]) -> list[Tensor]:
    """The second all-to-all: each rank's heads [B, H/P, I, …] -> each rank's tokens [B, H, I/P, …]."""
    ranks = len(parts)
    return [torch.cat([part[:, :, own] for part in parts], 1) for own in _shares(parts[0].shape[2], ranks)]


def _sharded(x: Tensor, ranks: int) -> list[Tensor]:
    """What each rank comes with: its run of tokens [B, H, I/P, X]; none, where there are fewer tokens than ranks."""
    return [x[:, :, own] for own in _shares(x.shape[2], ranks)]


def _shares(count: int, ranks: int) -> list[slice]:
    return [contiguous(rank, ranks, count) for rank in range(ranks)]


def _of_rank(call: Call, ranks: int, rank: int) -> Call:
    own = _shares(call.q.shape[1], ranks)[rank]
    return call.heads(own.start, own.stop)


IMPLEMENTATIONS = [ulysses()]
