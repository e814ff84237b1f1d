"""Numbers that cannot be: an alarm is a sentence on the record, never a silent correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from bench.record import Reading, Scalar
from bench.units import show

LAUNCH_FLOOR_S = 5e-7  # a Python call into torch that does any work takes longer than this
FAULT_S = 7e-7  # about what one minor page fault costs (1550 µs against 790 µs with 672 of them)
FAULT_SHARE = 0.2  # from this share of the time on, the time is page faults
ABOVE = 1.25  # a ceiling is measured, and may have been measured in a bad moment
CEILINGS = {"ceiling_flops": ABOVE, "data_sheet_flops": 1.0}  # facts that a rate must not exceed by more than that
LONGER, GREW, LONG_S = 4, 1.1, 2e-3  # work that grew so much must take more time, where it took so long already


def alarms(
    readings: Mapping[str, Reading], facts: Mapping[str, Scalar] | None = None, *, every_pair: bool = True
) -> tuple[str, ...]:
    """Sentences about readings of one cell that cannot be what they say.

    facts: what is known of the device under it. every_pair: that `model_flops` is arithmetic which is really done; a
    mechanism with a cheaper form than its definition may well be faster than any product of all pairs.
    """
    latency = readings.get("latency")
    if latency is None or not latency.values:
        return ()
    found = []
    values = sorted(latency.values)
    middle = values[len(values) // 2]
    if middle < LAUNCH_FLOOR_S:
        found.append(f"a step of {middle:.2g} s is below the launch floor of {LAUNCH_FLOOR_S:.2g} s: nothing was done")
    if len(values) >= 5 and values[0] == values[-1]:
        found.append("all rounds took exactly the same time: the clock did not run")
    faults = readings.get("minor_faults")
    if faults is not None and faults.values and faults.values[0] * FAULT_S > FAULT_SHARE * middle:
        found.append(f"{faults.values[0]:.0f} page faults a step: the time is the allocator's as much as the kernel's")
    return tuple(found + (_too_fast(readings, facts or {}) if every_pair else []))


def _too_fast(readings: Mapping[str, Reading], facts: Mapping[str, Scalar]) -> list[str]:
    rate = readings.get("flops_rate")
    if rate is None or not rate.values:
        return []
    reached, found = rate.values[0], []
    for name, margin in CEILINGS.items():
        most = facts.get(name)
        if isinstance(most, int | float) and reached > margin * most:
            found.append(
                f"{show(reached, 'flop/s')} is more than this device does ({name.replace('_', ' ')} "
                f"{show(most, 'flop/s')}): not all of the work was done"
            )
    return found


@dataclass
class Earlier:
    """What the cells of a run that are done say about those to come: ceilings of the device, times at other lengths."""

    ceilings: dict[tuple[Scalar, ...], Mapping[str, Scalar]] = field(default_factory=dict)
    _times: dict[tuple[Scalar, ...], list[tuple[int, float]]] = field(default_factory=dict)

    def stalls(self, cell: Mapping[str, Scalar], readings: Mapping[str, Reading]) -> tuple[str, ...]:
        """A sentence where a length LONGER times another's takes no more time; the cell's own time is kept."""
        latency = readings.get("latency")
        if latency is None or not latency.values or cell["q_len"] != cell["kv_len"]:
            return ()
        same = tuple(value for name, value in cell.items() if name not in _OF_LENGTH)
        n, seconds = int(cell["q_len"] or 0), median(latency.values)
        others = self._times.setdefault(same, [])
        found = [
            f"{show(longer, 's')} at n = {many}, {show(shorter, 's')} at n = {few}: time does not grow with the work"
            for (few, shorter), (many, longer) in (sorted(((n, seconds), other)) for other in others)
            if many >= LONGER * few and shorter >= LONG_S and longer < GREW * shorter
        ]
        others.append((n, seconds))
        return tuple(found[:1])


_OF_LENGTH = ("id", "q_len", "kv_len", "group", "reference")
