"""What a measurement leaves behind: plain data, the one door between the measuring and the reading side.

A run file is JSON lines: one `RunHeader`, then `Record`s, then a `RunEnd` once everything planned
has a record. Base units everywhere: seconds, bytes, operations, ratios. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

SCHEMA = 1  # 1: first layout

OUTCOMES = (
    "ok",  # right, and within the precision budget of its dtype
    "wrong",  # not this function
    "imprecise",  # this function, over the precision budget at this dtype
    "raised",  # an exception, in the note
    "not_applied",  # a transform did not do what its name says
    "out_of_memory",
    "timeout",
    "crashed",  # the interpreter died or left without saying `end`
    "killed",  # SIGKILL by somebody else than the kernel's out-of-memory killer
    "unsupported",  # refused by a sentence
    "absent",  # a package, compiler or device is missing here
)
MEASURED = ("ok", "imprecise")  # outcomes whose speed is shown
PEAKS = ("peak_forward", "peak_backward", "peak_optimiser")  # bytes of a step's phases: the largest is its peak

Scalar = str | int | float | bool | None
Number = int | float


_HUGE = 2**64  # no honest count reaches it; beyond 2**1024 an integer is no float and arithmetic with it raises


class MalformedRecord(ValueError):
    """A stored line that is not what its `kind` says; the message names the field."""


@dataclass(frozen=True)
class MetricInfo:
    """What the reading side needs to know of a metric, carried by the run's header.

    `better` is "lower", "higher" or "none" (no direction: shown, never judged); `noise` is "timed"
    (needs statistics), "exact" (any change counts), "budget" (an error, held against its budget) or
    "shown" (never gated).
    """

    unit: str
    better: str
    noise: str
    label: str


@dataclass(frozen=True)
class Reading:
    """Raw values of one metric for one cell, in the order they were taken.

    `round`, `process`, `inner` and `at` (seconds since the epoch) are as long as `values`, or empty
    where they mean nothing. A reading without values says in `why_missing` why there is none.
    """

    unit: str
    values: tuple[Number, ...] = ()
    round: tuple[int, ...] = ()
    process: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()
    at: tuple[float, ...] = ()
    why_missing: str | None = None


@dataclass(frozen=True)
class Key:
    """What makes two records the same measurement: the cell and how it was measured."""

    cell: str
    protocol: str


@dataclass(frozen=True)
class Record:
    """One cell's outcome and everything read from it.

    `cell` is flat and holds every coordinate, written by the plan, so that no reader parses an id.
    `facts` are scalars that explain the readings (stop reason, precision reached, what a transform
    applied). `alarms` are sentences about numbers that cannot be. `companion` marks a reference
    that was measured though it was deselected.
    """

    key: Key
    cell: Mapping[str, Scalar]
    outcome: str
    readings: Mapping[str, Reading] = field(default_factory=dict)
    backend: str = ""
    note: str = ""
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    alarms: tuple[str, ...] = ()
    companion: bool = False
    at: float = 0.0


@dataclass(frozen=True)
class RunHeader:
    """Everything about a run that is not about one cell.

    `plan` holds `suite`, `reference` and `cells` (ids in order); `metrics` the unit, direction and
    noise of each metric, so that an old reader can show one it has never heard of; `texts` what the
    report says of each variant; `left_out` what the suite asked for and the plan dropped, with why.
    """

    schema: int
    run: str
    created: str
    plan: Mapping[str, Any]
    protocol: Mapping[str, Scalar]
    protocol_digest: str
    machine: Mapping[str, Scalar]
    environment: Mapping[str, Scalar]
    environment_digest: str
    commit: str
    dirty: str
    metrics: Mapping[str, MetricInfo]
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    left_out: tuple[Mapping[str, str], ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunEnd:
    """The last line of a run that reached its end."""

    at: float
    records: int


Line = RunHeader | Record | RunEnd
_KINDS: dict[str, type] = {"header": RunHeader, "record": Record, "end": RunEnd}


def to_json(line: Line) -> dict[str, Any]:
    """The line as JSON-ready data with its `kind`; non-finite numbers become the strings nan, inf, -inf."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(line, cls))
    data: dict[str, Any] = encode(asdict(line))
    return {"kind": kind, **data}


def from_json(data: Any) -> Line:
    """The line that `to_json` wrote. Raises MalformedRecord naming what is wrong."""
    if not isinstance(data, dict):
        raise MalformedRecord("a stored line is not a JSON object")
    kind = data.get("kind")
    if kind == "header":
        return _header(data)
    if kind == "record":
        return _record(data)
    if kind == "end":
        return RunEnd(at=_time(data), records=_get(data, "records", int))
    raise MalformedRecord(f"unknown kind of line {str(kind)[:40]!r}; known: {', '.join(_KINDS)}")


def encode(value: Any) -> Any:
    """The value as strict JSON has it: tuples as lists, non-finite numbers as the strings nan, inf, -inf."""
    if isinstance(value, dict):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _get(data: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = data.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise MalformedRecord(f"field {name!r} is missing or of the wrong type")
    return value


def _number(value: Any) -> Number:
    if isinstance(value, bool):
        raise MalformedRecord("a reading's value is not a number")
    if isinstance(value, int | float):
        return _sized(value)
    if value in ("nan", "inf", "-inf"):
        return float(value)
    raise MalformedRecord("a reading's value is not a number")


def _sized(value: Number) -> Number:
    if isinstance(value, int) and abs(value) > _HUGE:
        raise MalformedRecord("a whole number of more than 64 bits")
    return value


def _time(data: Mapping[str, Any]) -> float:
    return float(_sized(_get(data, "at", (int, float))))


def _column(data: Mapping[str, Any], name: str, length: int) -> tuple[Any, ...]:
    values = data.get(name) or []
    kind = int | float if name == "at" else int
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise MalformedRecord(f"field {name!r} of a reading is not a list of numbers")
    if values and len(values) != length:
        raise MalformedRecord(f"a reading has {length} values but {len(values)} in {name!r}")
    return tuple(_sized(value) for value in values)


def _scalars(data: Mapping[str, Any], name: str) -> dict[str, Scalar]:
    value = _get(data, name, dict)
    for key, item in value.items():
        if not isinstance(item, str | int | float | bool | None):
            raise MalformedRecord(f"{name}.{str(key)[:40]} is not a plain value")
        if isinstance(item, int):
            _sized(item)
    return dict(value)


def _texts(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise MalformedRecord(f"field {name!r} is not a table of texts")
    return dict(value)


def _reading(data: Any) -> Reading:
    if not isinstance(data, dict):
        raise MalformedRecord("a reading is not an object")
    values = tuple(_number(v) for v in _get(data, "values", list))
    columns = {name: _column(data, name, len(values)) for name in ("round", "process", "inner", "at")}
    why = data.get("why_missing")
    if why is not None and not isinstance(why, str):
        raise MalformedRecord("field 'why_missing' is not a text")
    return Reading(unit=_get(data, "unit", str), values=values, why_missing=why, **columns)


def _record(data: Mapping[str, Any]) -> Record:
    key = _get(data, "key", dict)
    outcome = _get(data, "outcome", str)
    if outcome not in OUTCOMES:
        raise MalformedRecord(f"unknown outcome {outcome[:40]!r}")
    alarms = _get(data, "alarms", list)
    if not all(isinstance(alarm, str) for alarm in alarms):
        raise MalformedRecord("field 'alarms' is not a list of texts")
    return Record(
        key=Key(cell=_get(key, "cell", str), protocol=_get(key, "protocol", str)),
        cell=_scalars(data, "cell"),
        outcome=outcome,
        readings={str(name): _reading(item) for name, item in _get(data, "readings", dict).items()},
        backend=_get(data, "backend", str),
        note=_get(data, "note", str),
        facts=_scalars(data, "facts"),
        alarms=tuple(alarms),
        companion=_get(data, "companion", bool),
        at=_time(data),
    )


def _header(data: Mapping[str, Any]) -> RunHeader:
    schema = _get(data, "schema", int)
    if not 1 <= schema <= SCHEMA:
        raise MalformedRecord(f"schema {schema} is not one this version reads (1 to {SCHEMA})")
    metrics = _get(data, "metrics", dict)
    if not all(isinstance(info, dict) for info in metrics.values()):
        raise MalformedRecord("field 'metrics' is not a table of tables")
    infos = {
        name: MetricInfo(**{f.name: _get(info, f.name, str) for f in fields(MetricInfo)})
        for name, info in metrics.items()
    }
    return RunHeader(
        schema=schema,
        plan=_plan(_get(data, "plan", dict)),
        protocol=_scalars(data, "protocol"),
        machine=_scalars(data, "machine"),
        environment=_scalars(data, "environment"),
        metrics=infos,
        texts={str(k): _texts(v, "texts") for k, v in _get(data, "texts", dict).items()},
        left_out=tuple(_texts(item, "left_out") for item in _get(data, "left_out", list)),
        command=tuple(str(word) for word in _get(data, "command", list)),
        **{
            name: _get(data, name, str)
            for name in ("run", "created", "protocol_digest", "environment_digest", "commit", "dirty")
        },
    )


def _plan(plan: dict[str, Any]) -> dict[str, Any]:
    cells = plan.get("cells", [])
    if not isinstance(cells, list) or not all(isinstance(cell, str) for cell in cells):
        raise MalformedRecord("plan.cells is not a list of cell ids")
    return plan
