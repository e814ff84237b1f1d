"""One cell's record through pytest-benchmark's fixture: its timer tells the recorded rounds, its table shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from bench.protocol import Protocol
from bench.record import MEASURED, Reading, Record, encode


class CellFailed(Exception):
    """A cell that came out wrong, raised, crashed, …; the message is its sentence."""


@dataclass(eq=False)
class Clock:
    """A timer whose readings differ by durations recorded earlier: 0, then the next one, and so on."""

    __name__ = "attnbench_replay"  # pytest-benchmark prints it as `options.timer`
    _durations: Iterator[float] = field(default_factory=lambda: iter(()))
    _runs: bool = False

    def load(self, durations: Iterable[float]) -> None:
        """Sets what will be told, in seconds."""
        self._durations, self._runs = iter(durations), False

    def __call__(self) -> float:
        """Seconds since the beginning of the round."""
        self._runs = not self._runs
        return 0.0 if self._runs else next(self._durations)


def replay(benchmark: Any, clock: Clock, record: Record, told: Mapping[str, Any], repeat: str) -> None:
    """Gives the fixture the record's raw rounds, and `told` as its `extra_info`.

    A block of k calls is told as k iterations and k times the seconds a call. Raises CellFailed, from inside the
    fixture, so that it drops its entry, where the record has no rounds to show; `repeat` is the command to type.
    """
    __tracebackhide__ = True
    benchmark.extra_info.update(told)
    clock.load(())  # a cell that failed before has stopped it in the middle of a round
    latency = record.readings.get("latency", Reading("s", why_missing="it was not timed"))
    if record.outcome not in MEASURED or not latency.values:
        benchmark.pedantic(fail, args=(f"{_sentence(record, latency)}\nrepeat it with: {repeat}",))
        return
    inner = latency.inner[0]  # fixed once per contender
    clock.load(seconds * inner for seconds in latency.values)
    benchmark.pedantic(_nothing, rounds=len(latency.values), iterations=inner)


def run_once(benchmark: Any, step: Callable[[], Any]) -> None:
    """Runs a step once, and keeps pytest-benchmark from showing that as a time."""
    benchmark.disabled = True
    benchmark.pedantic(step)


def fail(sentence: str) -> NoReturn:
    """Raises CellFailed: what `pedantic` is given for a cell that has no rounds."""
    __tracebackhide__ = True
    raise CellFailed(sentence)


def extra_info(record: Record, protocol: Protocol, run: str) -> dict[str, Any]:
    """A record without its raw rounds, as strict JSON; a metric has its values or says why it has none."""
    told = {
        "run": run,
        "cell": dict(record.cell),
        "outcome": record.outcome,
        "note": record.note,
        "backend": record.backend,
        "companion": record.companion,
        "stop_reason": record.facts.get("stop_reason"),
        "metrics": {name: _told(reading) for name, reading in record.readings.items() if name != "latency"},
        "facts": dict(record.facts),
        "alarms": list(record.alarms),
        "protocol": {**asdict(protocol), "digest": record.key.protocol},
    }
    encoded: dict[str, Any] = encode(told)
    return encoded


def without_entry(records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """What pytest-benchmark's list leaves out: cells that failed or were skipped, and references nobody chose."""
    left = (r for r in records.values() if r.companion or r.outcome not in MEASURED or not _rounds(r))
    return [
        encode(
            {"id": r.key.cell, "outcome": r.outcome, "note": r.note, "companion": r.companion, "seconds": _rounds(r)}
        )
        for r in left
    ]


def _rounds(record: Record) -> list[float | int]:
    latency = record.readings.get("latency")
    return [] if latency is None else list(latency.values)


def _told(reading: Reading) -> dict[str, Any]:
    if not reading.values:
        return {"unit": reading.unit, "why_missing": reading.why_missing}
    return {"unit": reading.unit, "value": reading.values[0] if len(reading.values) == 1 else list(reading.values)}


def _sentence(record: Record, latency: Reading) -> str:
    if record.outcome in MEASURED:
        return f"no time: {latency.why_missing}"
    return f"{record.outcome}: {record.note}"


def _nothing() -> None:
    """What is run while the clock tells what was measured before."""
