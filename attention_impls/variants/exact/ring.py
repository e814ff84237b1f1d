"""softmax.ring and softmax.striped: attention over `ranks` machines in a ring, simulated in one process.

Exact. Every rank keeps the queries of its share of the tokens; keys and values travel. At step t rank r holds the
block that began at rank r - t and takes it into its running sums, then every block moves on to the next rank.
After `ranks` steps each query has met every key, and no rank held more than one block. Pairs of blocks in which
nothing is visible are passed on without work. What is simulated is who computes what and in which order; blocks
move by reference, so the time of a real ring's messages is not in it.

ring: contiguous shares; under a causal mask the last rank has work at every step and the first at one only.
striped: token n lies with rank n mod ranks, so that all ranks have about half a block's work at every step.

Sources: Liu, Zaharia & Abbeel 2023, "Ring Attention with Blockwise Transformers", arXiv 2310.01889;
Brandon et al. 2023, "Striped Attention", arXiv 2311.09431.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_impls.call import Call, wide
from attention_impls.contract import Implementation, Run, Support
from attention_impls.mask import Mask
from attention_impls.running import Sums, absorb, answer, fold, folded_scores, nothing, output
from attention_impls.tiling import checked
from attention_impls.variants.scores.softmax import SOFTMAX

Share = Callable[[int, int, int], slice]
"""(rank, ranks, tokens) -> the tokens that lie with a rank; none, where there are fewer tokens than ranks."""


def contiguous(rank: int, ranks: int, tokens: int) -> slice:
    """The rank's run of neighbouring tokens."""
    step = -(-tokens // ranks)
    return slice(min(rank * step, tokens), min((rank + 1) * step, tokens))


def round_robin(rank: int, ranks: int, tokens: int) -> slice:
    """Every `ranks`-th token, from number `rank` on."""
    return slice(min(rank, tokens), tokens, ranks)


def ring(ranks: int = 4) -> Implementation:
    """softmax over a ring with contiguous shares. Raises ValueError below 1 rank."""
    return _around("ring", contiguous, checked("ranks", ranks), ring)


def striped(ranks: int = 4) -> Implementation:
    """softmax over a ring with tokens dealt in turn. Raises ValueError below 1 rank."""
    return _around("striped", round_robin, checked("ranks", ranks), striped)


def _around(name: str, share: Share, ranks: int, configure: Callable[..., Implementation]) -> Implementation:
    def prepare(call: Call, lse: bool) -> Run:
        plan = Plan.of(call.mask.simplified().to(call.q.device), share, ranks)
        return lambda call: output(_run(call, plan), lse)

    return Implementation(name, SOFTMAX, prepare, Support(lse="differentiable"), configure=configure)


@dataclass(frozen=True, eq=False)
class Plan:
    """Tokens of every rank, what each sees of the block from each other rank (absent: nothing), and the way back.

    order [I]: where each query's row lies once the ranks' rows stand side by side; None when in place already.
    """

    queries: list[slice]
    keys: list[slice]
    visible: dict[tuple[int, int], Tensor | None]
    order: Tensor | None

    @staticmethod
    def of(mask: Mask, share: Share, ranks: int) -> Plan:
        """The plan for a mask: every decision that a run would else have to make."""
        queries = [share(r, ranks, mask.q_len) for r in range(ranks)]
        keys = [share(r, ranks, mask.kv_len) for r in range(ranks)]
        visible: dict[tuple[int, int], Tensor | None] = {}
        for rank, mine in enumerate(queries):
            visible |= {(rank, source): seen for source, seen in _seen(mask, mine, keys).items()}
        rows = torch.arange(mask.q_len, device=mask.device)
        order = torch.cat([rows[mine] for mine in queries])
        return Plan(queries, keys, visible, None if torch.equal(order, rows) else order.argsort())


def _seen(mask: Mask, mine: slice, keys: list[slice]) -> dict[int, Tensor | None]:
    """For one rank's queries: the visible pairs with each block of keys, None where all are; no entry where none is."""
    rows = torch.arange(mask.q_len, device=mask.device)[mine]
    whole = mask.visible(rows)
    seen: dict[int, Tensor | None] = {}
    for source, block in enumerate(keys):
        if not len(rows) or not len(range(mask.kv_len)[block]):
            continue
        part = None if whole is None else whole[..., block]
        if part is None or bool(part.all()):
            seen[source] = None
        elif bool(part.any()):
            seen[source] = part.contiguous()
    return seen


def _run(call: Call, plan: Plan) -> tuple[Tensor, Tensor]:
    heads, groups, ranks = call.q.shape[1], call.k.shape[1], len(plan.keys)
    queries = [fold(call.q[:, :, mine], groups) * call.scale for mine in plan.queries]
    sums = [nothing(rows, call.v.shape[3]) for rows in queries]
    held = [(call.k[:, :, mine], call.v[:, :, mine]) for mine in plan.keys]
    for step in range(ranks):
        for rank in range(ranks):
            source = (rank - step) % ranks
            if (rank, source) in plan.visible:
                keys, values = held[rank]
                scores = folded_scores(queries[rank], keys, plan.visible[rank, source], heads)
                sums[rank] = absorb(sums[rank], scores, wide(values))
        held = [held[rank - 1] for rank in range(ranks)]  # every rank gives its block to the next
    return _in_place(call, plan, sums)


def _in_place(call: Call, plan: Plan, sums: list[Sums]) -> tuple[Tensor, Tensor]:
    """The ranks' rows, where the tokens of the call stand."""
    answers = [answer(own, call) for own in sums]
    out, lse = (torch.cat(parts, 2) for parts in zip(*answers, strict=True))
    return (out, lse) if plan.order is None else (out[:, :, plan.order], lse[:, :, plan.order])


IMPLEMENTATIONS = [ring(), striped()]
