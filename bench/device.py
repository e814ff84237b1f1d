"""What the harness asks of a device, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bench.record import Scalar

Forward = Callable[[], Tensor]
Backward = Callable[[Tensor], tuple[Tensor, ...]]


def _nothing() -> None:
    """There is nothing to bring back."""


@dataclass(frozen=True)
class Phases:
    """One step in its parts. forward returns what backward takes, backward the gradients, which stay alive through
    `optimise`. before: brings things back to where a step begins; it is not measured."""

    forward: Forward
    backward: Backward | None = None
    optimise: Callable[[], None] | None = None
    before: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Held:
    """Bytes above the inputs in one step, outputs included, or why there is no number.

    peak_forward: the most alive at once in the forward. held: alive when it is over (its output, and what
    it keeps for backward). peak_backward: the most alive at once in the backward, held included. peak_optimise:
    the most alive at once in the optimiser; scratch: how much of that came with it.
    """

    peak_forward: int | None = None
    held: int | None = None
    peak_backward: int | None = None
    peak_optimise: int | None = None
    scratch: int | None = None
    why_missing: str = ""
    facts: Mapping[str, Scalar] = field(default_factory=dict)


class Device(ABC):
    """A kind of device: how it is set up, timed, and asked for memory."""

    name: str
    clocks: tuple[str, ...]  # whose seconds `block` can return, the default first; never mixed in one series
    caches: str  # what `block` starts from: "warm", "cold"

    @abstractmethod
    def missing(self) -> str | None:
        """A sentence when this device is not here, else None."""

    def units(self) -> tuple[str, ...]:
        """Name and memory of each one that this process may use, for the machine's id; the CPU is described apart."""
        return ()

    @abstractmethod
    def set_up(self, threads: int, clock: str, *, tf32: bool = False) -> dict[str, Scalar]:
        """Prepares this process for measuring by `clock` ("" is the default one); returns what was set.

        With `tf32` products of float32 matrices may round their inputs to 10 bits, where the device can.
        """

    @abstractmethod
    def synchronise(self) -> None:
        """Waits until everything asked for is done."""

    @abstractmethod
    def block(self, step: Callable[[], Any], inner: int) -> float:
        """Seconds for `inner` calls of `step`, start to finish, nothing else inside."""

    @abstractmethod
    def memory(self, phases: Phases) -> Held:
        """Bytes of one step; warms up by itself."""

    @abstractmethod
    def is_out_of_memory(self, error: BaseException) -> bool:
        """True when `error` says that memory ran out."""

    @abstractmethod
    def recover(self) -> None:
        """Gives back what a failed step left behind."""
