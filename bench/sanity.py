"""Numbers that cannot be: an alarm is a sentence on the record, never a silent correction."""

from __future__ import annotations

from collections.abc import Mapping

from bench.record import Reading

LAUNCH_FLOOR_S = 5e-7  # a Python call into torch that does any work takes longer than this
FAULT_S = 7e-7  # about what one minor page fault costs (1550 µs against 790 µs with 672 of them)
FAULT_SHARE = 0.2  # from this share of the time on, the time is page faults


def alarms(readings: Mapping[str, Reading]) -> tuple[str, ...]:
    """Sentences about readings of one cell that cannot be what they say."""
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
    return tuple(found)
