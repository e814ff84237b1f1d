"""The parent's hand on one live worker: a command out, its events back, its death told with the cell it was at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.ab.sides import Side
from bench.child import Child, Death, start
from bench.errors import CannotDo


class Died(Exception):
    """The worker of side `at` ended in the middle: at `cell` (an index, None before the first), with how it died."""

    def __init__(self, at: int, cell: int | None, death: Death) -> None:
        super().__init__(death.note)
        self.at, self.cell, self.death = at, cell, death


class Live:
    """One side's worker. Use as a context; leaving it ends the worker and whatever it started."""

    def __init__(
        self, at: int, side: Side, job: Mapping[str, Any], environment: Mapping[str, str], timeout_s: float
    ) -> None:
        self.at, self.side = at, side
        self._child: Child = start(job, environment, place=side.place, module="bench.ab.worker", live=True)
        self._events: Iterator[dict[str, Any]] = self._child.events(lambda _: timeout_s)
        self.cell: int | None = None
        self.open = True

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        if self.open:
            self.open = False
            self._child.stop()

    def wait_ready(self) -> None:
        """Waits until it stands. Raises CannotDo where it imported other kernels than its side's, or died before."""
        try:
            ready = self._next()
        except Died as died:
            raise CannotDo(f"{self.side.label}: the worker did not start: {died.death.note}") from None
        self.side.prove(ready)

    def ask(self, do: str, **fields: Any) -> list[dict[str, Any]]:
        """Sends a command; the events it caused. Raises Died."""
        self._child.say({"do": do, **fields})
        found = []
        while (event := self._next())["e"] != "done":
            if event["cell"] is not None:
                self.cell = event["cell"]
            found.append(event)
        return found

    def _next(self) -> dict[str, Any]:
        event = next(self._events, None)
        if event is None:
            self.open = False
            death = self._child.death or Death("crashed", "the worker left before it was told to")
            raise Died(self.at, self.cell, death)
        return event


def failures(events: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, str]]:
    """(outcome, note) of the cells that failed, by index."""
    return {e["cell"]: (str(e["outcome"]), str(e["note"])) for e in events if e["e"] == "failed"}
