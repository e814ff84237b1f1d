"""How long a plan takes and how much memory it needs, said before it runs; and fitting it into a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attention_impls.contract import DTYPES
from bench.errors import UserError
from bench.plan import Group, Plan
from bench.protocol import Protocol

CHILD_S = 3.0  # starting a child and importing torch, on two shared cores
JUDGE_S = 0.6  # oracle, two profiler sessions and the operator count of a small contender
COMPILE_S = 25.0  # what a first call through torch.compile takes, in each of the two children
# Of one core, and of a GPU, cautiously: a naive form reaches as much. Judging runs a step about eight times.
OPERATIONS_A_SECOND = {"cpu": 3e10, "cuda": 2e13}
JUDGE_STEPS = 8
SHORTEST_GROUP_S = 1.0
LONGEST_S = CHILD_S + 6.0  # a search for the longest sequence: few probes, of which the last two are the long ones


@dataclass(frozen=True)
class Estimate:
    """Seconds and bytes, both upper guesses: a contender that needs less is the rule."""

    seconds: float
    peak: int


def estimate(group: Group, protocol: Protocol, farthest: frozenset[str] = frozenset()) -> Estimate:
    """What a group takes at most: children, judging, the time budget; and a materialised matrix of weights.

    farthest: cells of which the longest sequence is searched too, where the protocol asks for it.
    """
    measured = group.measured
    if not measured:
        return Estimate(0.0, 0)
    w = measured[0].cell.workload
    backward = measured[0].cell.direction != "fwd"
    pairs = w.batch * w.heads * w.q_len * w.kv_len
    rate = OPERATIONS_A_SECOND["cpu" if measured[0].cell.device == "cpu" else "cuda"]
    step = 2 * pairs * (w.head_dim + w.value_dim) * (3.5 if backward else 1.0) / rate
    compiled = sum("compiled" in p.cell.subject or ".flex" in p.cell.subject for p in measured)
    judging = len(measured) * (JUDGE_S + JUDGE_STEPS * step) + compiled * 2 * COMPILE_S
    timing = min(protocol.group_budget_s, len(measured) * protocol.max_rounds * max(step, 2 * protocol.block_s))
    warming = len(measured) * max(protocol.warm_s, protocol.warm_calls * step)
    slow_rounds = 3 * len(measured) * 2 * step
    matrix = pairs * DTYPES[w.dtype].itemsize
    searched = sum(p.cell.id in farthest for p in measured) * LONGEST_S if protocol.max_memory else 0.0
    seconds = 2 * CHILD_S + judging + warming + max(timing, slow_rounds) + searched
    return Estimate(seconds, matrix * (4 if backward else 2))


def total(plan: Plan, protocol: Protocol) -> Estimate:
    """Seconds of the whole plan; the peak of its largest group."""
    parts = [estimate(group, protocol, plan.farthest()) for group in plan.groups]
    return Estimate(sum(p.seconds for p in parts), max((p.peak for p in parts), default=0))


def fit(plan: Plan, protocol: Protocol, available_s: float) -> tuple[Plan, Protocol]:
    """The plan and protocol that fit into a time: first less time a group, then fewer groups, the dearest first.

    Groups that go are named in `left_out`. Raises UserError when not even the cheapest group fits.
    """
    kept, out, farthest = list(plan.groups), list(plan.left_out), plan.farthest()
    shortest = replace(protocol, group_budget_s=SHORTEST_GROUP_S)
    while kept and sum(estimate(g, shortest, farthest).seconds for g in kept) > available_s:
        dearest = max(kept, key=lambda g: estimate(g, shortest, farthest).seconds)
        kept.remove(dearest)
        out.append({"what": dearest.setting, "why": f"does not fit into {available_s:.0f} s"})
    if not kept:
        need = min((estimate(g, shortest, farthest).seconds for g in plan.groups), default=0.0)
        raise UserError(f"no group fits into {available_s:.0f} s; the cheapest takes about {need:.0f} s")
    spare = available_s - sum(estimate(g, shortest, farthest).seconds for g in kept)
    share = SHORTEST_GROUP_S + spare / len(kept)
    fitted = replace(plan, groups=tuple(kept), left_out=tuple(out))
    return fitted, replace(protocol, group_budget_s=min(protocol.group_budget_s, share))
