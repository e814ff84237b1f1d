"""What to measure, as written: a suite file and the flags that override it. Pure data, no torch.

A suite is TOML: `name`, `why`, `budget` ("3m"), `reference` (subjects, the first that can do a workload is
the group's reference), `[axes]` shared by all sweeps, and `[[sweep]]` tables with `why`, `subjects` and axes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.errors import UserError, unknown

# Each axis with its default; None means "as another axis": kv_heads as heads, kv_len as q_len, value_dim as head_dim.
AXES: dict[str, Any] = {
    "batch": 1,
    "heads": 8,
    "kv_heads": None,
    "q_len": 1024,
    "kv_len": None,
    "head_dim": 64,
    "value_dim": None,
    "dtype": "f32",
    "mask": "full",
    "inputs": "normal",
    "direction": "fwd",
    "device": "auto",
    "threads": 1,
}
_NUMBERS = {"batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim", "threads"}
_SUITE_KEYS = {"name", "why", "budget", "reference", "axes", "sweep", "group_budget", "precision", "max_memory"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|KiB|MiB|GiB)\Z")
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)\Z")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

Axes = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Sweep:
    """Subjects crossed with axes; each axis is a tuple of values."""

    subjects: tuple[str, ...]
    axes: Axes
    why: str = ""


@dataclass(frozen=True)
class Spec:
    """A suite with every override applied."""

    name: str
    sweeps: tuple[Sweep, ...]
    reference: tuple[str, ...]
    why: str = ""
    budget_s: float | None = None
    group_budget_s: float | None = None
    precision: float | None = None
    max_memory: int | None = None  # bytes: also find the longest sequence within them
    cells: tuple[str, ...] = field(default=())  # exact cell ids instead of sweeps
    keep: str = ""  # an expression over words of the id, as pytest's -k


def seconds(text: str) -> float:
    """ "90s", "3m", "1.5h", "200ms" in seconds. Raises UserError."""
    found = _DURATION.match(text.strip())
    if found is None:
        raise UserError(f"{text!r} is no duration; write a number with ms, s, m or h, as in 10m")
    return float(found[1]) * _UNITS[found[2]]


def size(text: str) -> int:
    """ "64MiB", "1.5GiB", "4096B" in bytes. Raises UserError."""
    found = _SIZE.match(text.strip())
    if found is None or not (many := int(float(found[1]) * _BYTES[found[2]])):
        raise UserError(f"{text!r} is no size; write a number with B, KiB, MiB or GiB, as in 64MiB")
    return many


def suites_folder() -> Path:
    """Where the suites that come with the package lie."""
    return Path(__file__).parent / "suites"


def suite_names() -> list[str]:
    """Names of the suites that come with the package."""
    return sorted(path.stem for path in suites_folder().glob("*.toml"))


def load(name: str) -> Spec:
    """The suite of that name, or at that path. Raises UserError."""
    path = Path(name) if name.endswith(".toml") else suites_folder() / f"{name}.toml"
    if not path.is_file():
        if name.endswith(".toml"):
            raise UserError(f"no suite file {name}")
        raise unknown("suite", name, suite_names())
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path.name} is not TOML: {error}") from None
    return from_data(data, path.stem)


def from_data(data: Mapping[str, Any], name: str) -> Spec:
    """A spec from a suite's tables. Raises UserError for a key, axis or value nobody knows."""
    for key in data:
        if key not in _SUITE_KEYS:
            raise unknown(f"key in suite {name}", key, _SUITE_KEYS)
    shared = data.get("axes", {})
    sweeps = tuple(_sweep(table, shared, name) for table in data.get("sweep", ()))
    reference = data.get("reference", ())
    return Spec(
        name=str(data.get("name", name)),
        why=str(data.get("why", "")),
        sweeps=sweeps,
        reference=(reference,) if isinstance(reference, str) else tuple(reference),
        budget_s=seconds(data["budget"]) if "budget" in data else None,
        group_budget_s=seconds(data["group_budget"]) if "group_budget" in data else None,
        precision=float(data["precision"]) if "precision" in data else None,
        max_memory=size(data["max_memory"]) if "max_memory" in data else None,
    )


def _sweep(table: Mapping[str, Any], shared: Mapping[str, Any], name: str) -> Sweep:
    subjects = table.get("subjects", ())
    if not subjects:
        raise UserError(f"a sweep of suite {name} has no subjects")
    own = {key: value for key, value in table.items() if key not in ("subjects", "why")}
    return Sweep(tuple(subjects), axes_of({**shared, **own}), str(table.get("why", "")))


def axes_of(values: Mapping[str, Any]) -> Axes:
    """Axes as tuples of values of the right kind, unnamed ones at their default. Raises UserError."""
    for axis in values:
        if axis not in AXES:
            raise unknown("axis", axis, AXES)
    return {axis: _values(axis, values.get(axis, default)) for axis, default in AXES.items()}


def _values(axis: str, given: Any) -> tuple[Any, ...]:
    listed = list(given) if isinstance(given, list | tuple) else [given]
    if not listed:
        raise UserError(f"axis {axis} has no values")
    return tuple(_value(axis, item) for item in listed)


def _value(axis: str, item: Any) -> Any:
    if item is None and AXES[axis] is None:
        return None
    if axis not in _NUMBERS:
        return str(item)
    try:
        number = int(str(item).replace("_", ""))
    except ValueError:
        raise UserError(f"axis {axis} takes whole numbers; got {item!r}") from None
    if number < 1:
        raise UserError(f"axis {axis} must be at least 1; got {number}")
    return number


def override(spec: Spec, axes: Mapping[str, Sequence[Any]], subjects: Sequence[str] = ()) -> Spec:
    """The spec with axes replaced in every sweep, and subjects too where any are given. Raises UserError."""
    for axis in axes:
        if axis not in AXES:
            raise unknown("axis", axis, AXES)
    changed = {axis: _values(axis, list(values)) for axis, values in axes.items()}
    sweeps = (replace(s, axes={**s.axes, **changed}, subjects=tuple(subjects) or s.subjects) for s in spec.sweeps)
    return replace(spec, sweeps=tuple(sweeps))
