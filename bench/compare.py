"""Better or worse: two stored runs, cell by cell and metric by metric. The only place that judges change.

Each metric is held by its kind of noise, which the run's header carries. "exact" counts any change in the
bad direction. "budget" is an error, held against its budget. "timed" is compared as the ratio to the group's
reference, before and after, and stays `unclear` unless it moved beyond the machine's noise floor. "shown" is
never judged and has no row here. Outcomes count always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from bench.ratios import to_reference
from bench.record import MEASURED, Key, MetricInfo, Record, Scalar
from bench.stats import Estimate, Overall, overall
from bench.store import Run
from bench.verdicts import Judged, exact, value_of, within_budget

NOISE_FLOOR = 0.25
"""How far a ratio to the reference moves between separate runs of identical code on a shared machine.

The median of one cell varied by 20 to 23 % (coefficient of variation over 16 runs), whatever was done within
a run; it stands until a machine has a measured floor of its own.
"""
EACH_SIDE = 0.975  # confidence of each run's interval, so that both hold together in 95 % (Bonferroni)

JUDGED = ("exact", "budget", "timed")
FINDINGS = ("worse", "broke", "gone")
VERDICTS = (*FINDINGS, "not_comparable", "unclear", "accepted", "better", "fixed", "new", "same")


@dataclass(frozen=True)
class Comparison:
    """One metric (or "outcome", or "protocol") of one cell in two runs.

    `before` and `after` are in the metric's unit (for a timed one: medians), or texts. `ratio` is after over
    before, for a timed metric that of the ratios to the reference; None where it has no meaning.
    """

    key: Key
    metric: str
    before: Scalar
    after: Scalar
    ratio: float | None
    interval: tuple[float, float] | None
    verdict: str
    why: str


@dataclass(frozen=True)
class _Side:
    """One run with its records by cell id and its references by (group, subject)."""

    run: Run
    cells: Mapping[str, Record]
    subjects: Mapping[tuple[Scalar, Scalar], Record]


@dataclass(frozen=True)
class _Pair:
    """One metric of a cell that both runs have."""

    name: str
    info: MetricInfo
    old: Record
    new: Record
    one: _Side
    two: _Side
    floor: float


Floor = Callable[[str, str], float | None]
"""(cell id, metric) -> how far a timed ratio must move to count, None where nothing is said of it."""


def compare(
    before: Run, after: Run, *, noise_floor: float | None = None, floor_of: Floor = lambda cell, metric: None
) -> list[Comparison]:
    """Every cell of either run, every metric both know, in the order of `before`, then what is new."""

    def floor(cell: str, metric: str) -> float:
        own = floor_of(cell, metric)
        return own if own is not None else NOISE_FLOOR if noise_floor is None else noise_floor

    one, two = _side(before), _side(after)
    found: list[Comparison] = []
    for cell, old in one.cells.items():
        new = two.cells.get(cell)
        found += [_gone(old, two)] if new is None else _cell(old, new, one, two, floor)
    found += [_new(record) for cell, record in two.cells.items() if cell not in one.cells]
    return found


def differing(before: Mapping[str, Scalar], after: Mapping[str, Scalar]) -> list[str]:
    """Fields that are not the same on both sides, as "heap: pinned, then system"."""
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return [f"{name}: {before.get(name, 'not said')}, then {after.get(name, 'not said')}" for name in names]


def summary(found: Iterable[Comparison], metric: str) -> Overall:
    """Geometric mean of a metric's ratios over the cells that have one.

    Left out, and named, are cells whose ratio has no number and cells that failed or are on one side only:
    without them a mean improves when a slow cell breaks.
    """
    known = [c for c in found if c.metric == metric or (c.metric in ("outcome", "protocol") and c.verdict != "same")]
    ratios = {c.key.cell: c.ratio for c in known if c.metric == metric and c.ratio is not None}
    return overall(dict.fromkeys((c.key.cell for c in known), 1.0), ratios)


def _side(run: Run) -> _Side:
    cells = {record.key.cell: record for record in run.records}
    subjects = {(record.cell.get("group"), record.cell.get("subject")): record for record in run.records}
    return _Side(run, cells, subjects)


def _gone(old: Record, two: _Side) -> Comparison:
    if old.companion:
        verdict, why = "not_comparable", "it was only a companion, a reference that nobody had asked for"
    elif old.key.cell in two.run.header.plan.get("cells", ()):
        verdict, why = "gone", "planned, but the later run has no record of it" + _cut_short(two.run)
    else:
        verdict, why = "gone", "the later run did not plan it"
    return Comparison(old.key, "outcome", old.outcome, None, None, None, verdict, why)


def _cut_short(run: Run) -> str:
    return "" if run.finished else ": it was cut short; go on with --resume"


def _new(record: Record) -> Comparison:
    return Comparison(
        record.key, "outcome", None, record.outcome, None, None, "new", "the earlier run has no record of it"
    )


def _cell(old: Record, new: Record, one: _Side, two: _Side, floor: Callable[[str, str], float]) -> Iterator[Comparison]:
    if old.key.protocol != new.key.protocol:
        yield _protocols(old, new, one.run, two.run)
        return
    yield _outcome(old, new)
    fell = old.outcome not in MEASURED or new.outcome not in MEASURED
    for name in dict.fromkeys([*old.readings, *new.readings]):
        info = two.run.header.metrics.get(name) or one.run.header.metrics.get(name)
        if info is None or info.noise not in JUDGED:
            continue
        before, after = value_of(old.readings.get(name), info), value_of(new.readings.get(name), info)
        if (before is None and after is None) or (None in (before, after) and fell):
            continue  # where an outcome changed, its row says why there is no number
        judged = _metric(_Pair(name, info, old, new, one, two, floor(new.key.cell, name)), before, after)
        yield Comparison(new.key, name, before, after, judged.ratio, judged.interval, judged.verdict, judged.why)


def _protocols(old: Record, new: Record, before: Run, after: Run) -> Comparison:
    fields = differing(before.header.protocol, after.header.protocol)
    why = "measured another way: " + ("; ".join(fields) or "no field of the protocol says in what")
    return Comparison(new.key, "protocol", old.key.protocol, new.key.protocol, None, None, "not_comparable", why)


def _outcome(old: Record, new: Record) -> Comparison:
    a, b = old.outcome, new.outcome
    good, measured = (a == "ok", b == "ok"), (a in MEASURED, b in MEASURED)
    if a == b:
        verdict, why = "same", ""
    elif (True, False) in (good, measured):
        verdict, why = "broke", new.note
    elif (False, True) in (good, measured):
        verdict, why = "fixed", old.note
    else:
        verdict, why = "unclear", f"not measured either time: {old.note or a}; {new.note or b}"
    return Comparison(new.key, "outcome", a, b, None, None, verdict, why)


def _metric(pair: _Pair, before: float | None, after: float | None) -> Judged:
    """The verdict on one metric of which at least one side has a number."""
    if before is None or after is None:
        return _one_sided(pair, before is None)
    earlier = pair.one.run.header.metrics.get(pair.name, pair.info)
    units = (pair.old.readings[pair.name].unit, pair.new.readings[pair.name].unit)
    if units[0] != units[1] or (earlier.better, earlier.noise) != (pair.info.better, pair.info.noise):
        return Judged(
            "not_comparable", f"the metric was another: in {units[0]}, {earlier.better} better, {earlier.noise}"
        )
    if pair.info.noise == "timed":
        return _timed(pair)
    if pair.info.noise == "budget":
        return within_budget(pair.new.facts.get(f"budget.{pair.name}"), before, after)
    return exact(pair.info, before, after)


def _one_sided(pair: _Pair, appeared: bool) -> Judged:
    """A number that is there on one side only, of a cell that was measured both times."""
    if appeared:
        return Judged("new", "the earlier run has no number for it")
    if pair.name not in pair.two.run.header.metrics:
        return Judged("not_comparable", "the later run did not know this metric")
    reading = pair.new.readings.get(pair.name)
    if reading is None:
        return Judged("not_comparable", "the later run was not asked for it")
    return Judged("gone", reading.why_missing or "the later run has no number for it")


def _timed(pair: _Pair) -> Judged:
    """The ratio to the group's reference, before and after; beyond the noise floor or `unclear`."""
    refusal = _why_no_ratio(pair)
    if refusal is not None:
        return refusal
    before, after = _relative(pair.old, pair.one, pair.name), _relative(pair.new, pair.two, pair.name)
    if isinstance(before, str) or isinstance(after, str):
        return Judged("unclear", f"before: {before}" if isinstance(before, str) else f"after: {after}")
    ratio = after.ratio / before.ratio
    interval = (after.low / before.high, after.high / before.low)
    why = f"{before.ratio:.3g} of {pair.new.cell['reference']}, then {after.ratio:.3g}"
    slower, faster = ratio > 1 + pair.floor and interval[0] > 1, ratio < 1 / (1 + pair.floor) and interval[1] < 1
    if not slower and not faster:
        return Judged("unclear", f"{why}: within the {pair.floor:.0%} by which separate runs differ", ratio, interval)
    bad = slower if pair.info.better == "lower" else faster
    return Judged("worse" if bad else "better", why, ratio, interval)


def _why_no_ratio(pair: _Pair) -> Judged | None:
    old, new = pair.old.cell, pair.new.cell
    if pair.old.readings[pair.name] == pair.new.readings[pair.name]:
        return Judged("same", "the very same samples", 1.0)
    if pair.one.run.machine != pair.two.run.machine:
        return Judged("not_comparable", f"machine: {pair.one.run.machine}, then {pair.two.run.machine}")
    if old.get("reference") != new.get("reference"):
        return Judged("not_comparable", f"reference: {old.get('reference')}, then {new.get('reference')}")
    if pair.info.better not in ("lower", "higher"):
        return Judged("unclear", "the metric has no better direction")
    if not new.get("reference"):
        return Judged("unclear", "its group has no reference")
    if new.get("subject") == new.get("reference"):
        return Judged("unclear", "it is the reference that the others are held against")
    if new.get("device") == "cpu" and new.get("threads") != 1:
        return Judged("unclear", f"{new.get('threads')} threads: shown, never judged (a lost core stalls a step)")
    return None


def _relative(record: Record, side: _Side, metric: str) -> Estimate | str:
    reference = side.subjects.get((record.cell.get("group"), record.cell.get("reference")))
    theirs = None if reference is None else reference.readings.get(metric)
    return to_reference(record.readings[metric], theirs, EACH_SIDE)
