"""Time: all contenders of a group interleaved in shuffled rounds, in a process that does nothing else."""

from __future__ import annotations

import math
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.device import Device
from bench.garbage import uncollected
from bench.metric import Sample
from bench.protocol import Protocol
from bench.step import Step

LARGEST_INNER = 2**20
SPARE_ROUNDS = 5  # rounds taken even past the time budget; 3 where one round alone exceeds it
SLOW_ROUNDS = 3
CHECK_EVERY = 5


@dataclass
class Contender:
    """A step on its way through the time phase; `inner` is how many calls make a block, fixed once."""

    index: int
    step: Step
    functions: tuple[Callable[[], Any], ...]
    inner: int = 1
    warm: int = 1


@dataclass(frozen=True)
class Stopped:
    """Why the rounds ended: "precise", "time", "rounds" or "slow", and the precision reached within this process.

    precision is the half-width of the 95 % order-statistic interval of the worst contender's ratio to the
    reference (or of its own median, alone), relative; it says nothing about the next process.
    """

    reason: str
    rounds: int
    precision: float


def warm_up(device: Device, contender: Contender, protocol: Protocol, clock: Callable[[], float]) -> int:
    """Runs a contender until it is warm, then fixes how many calls make a block, and how many warm it.

    Returns how many calls make a block.
    """
    calls, start = 0, clock()
    while calls < protocol.warm_calls or clock() - start < protocol.warm_s:
        contender.functions[calls % len(contender.functions)]()
        calls += 1
        if calls >= 2 and clock() - start > 4 * protocol.group_budget_s:
            break
    device.synchronise()
    once = _shortest(device, contender)
    while once * contender.inner < protocol.block_s and contender.inner < LARGEST_INNER:
        contender.inner = min(LARGEST_INNER, max(contender.inner * 2, math.ceil(protocol.block_s / max(once, 1e-9))))
        once = min(device.block(contender.functions[0], contender.inner) / contender.inner for _ in range(2))
    contender.warm = max(1, min(contender.inner, math.ceil(protocol.block_warm_s / max(once, 1e-9))))
    return contender.inner


def _shortest(device: Device, contender: Contender) -> float:
    return min(device.block(contender.functions[0], contender.inner) for _ in range(3))


def rounds(
    device: Device,
    contenders: Sequence[Contender],
    reference: int | None,
    protocol: Protocol,
    begin: Callable[[int], None],
    take: Callable[[int, Sample], None],
    clock: Callable[[], float] = time.monotonic,
) -> Stopped:
    """Shuffled rounds of one block each until the ratios are known well enough or time is up.

    `reference` is the index of the contender that the others are held against, None when there is none.
    `begin(index)` is called before each block, so that a death is blamed on the right one, and
    `take(index, sample)` after it; both outside what is timed.
    """
    order = random.Random(protocol.seed)  # noqa: S311 - shuffles, keeps no secret
    taken: dict[int, list[float]] = {contender.index: [] for contender in contenders}
    start = clock()
    with uncollected():
        for number in range(protocol.max_rounds):
            began = clock()
            for contender in order.sample(list(contenders), len(contenders)):
                begin(contender.index)
                sample = take_block(device, contender, number)
                taken[contender.index].append(sample.seconds)
                take(contender.index, sample)
            slow = clock() - began > protocol.group_budget_s
            stopped = _stop(taken, reference, protocol, clock() - start, slow)
            if stopped is not None:
                return stopped
    return Stopped("rounds", protocol.max_rounds, precision(taken, reference))


def take_block(device: Device, contender: Contender, number: int) -> Sample:
    """One timed block after its untimed calls; the round's number says which input set it runs on."""
    function = contender.functions[number % len(contender.functions)]
    for _ in range(contender.warm):
        function()
    device.synchronise()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    seconds = device.block(function, contender.inner)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return Sample(seconds / contender.inner, contender.inner, number, 0, faults / contender.inner, time.time())


def _stop(
    taken: dict[int, list[float]], reference: int | None, protocol: Protocol, spent: float, slow: bool
) -> Stopped | None:
    done = len(next(iter(taken.values())))
    if slow:
        enough = done >= max(SLOW_ROUNDS, protocol.least_rounds)
        return Stopped("slow", done, precision(taken, reference)) if enough else None
    if spent > protocol.group_budget_s and done >= max(SPARE_ROUNDS, protocol.least_rounds):
        return Stopped("time", done, precision(taken, reference))
    if done < protocol.min_rounds or done % CHECK_EVERY:
        return None
    reached = precision(taken, reference)
    return Stopped("precise", done, reached) if reached <= protocol.precision else None


def precision(taken: dict[int, list[float]], reference: int | None) -> float:
    """Half-width of the 95 % interval of each contender's median ratio to the reference, the worst of them."""
    base = taken.get(reference) if reference is not None else None
    widths = []
    for index, values in taken.items():
        if base is None:
            widths.append(half_width(values))
        elif index != reference:
            widths.append(half_width([value / own for value, own in zip(values, base, strict=True)]))
    return max(widths, default=half_width(base or []))


def half_width(values: Sequence[float]) -> float:
    """Relative half-width of the 95 % order-statistic interval of the median; inf below 6 values.

    The interval is [x_(k), x_(n+1-k)] with k from the normal approximation of the binomial; standard
    library only, for the measuring side has no scipy.
    """
    n = len(values)
    k = math.floor(n / 2 - 0.98 * math.sqrt(n))
    if n < 6 or k < 1:
        return math.inf
    ordered = sorted(values)
    middle = ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2
    return (ordered[n - k] - ordered[k - 1]) / 2 / middle if middle > 0 else math.inf
