"""What this machine cannot tell apart: sessions of identical code against itself, kept beside the baselines.

One JSON file a machine. A cell's floor is what its ratio of 1 wandered to in nineteen sessions of twenty, times
1.5: a verdict asks for more than that.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import CannotDo
from bench.record import encode
from bench.store.naming import baseline_path

SCHEMA = 1
SHARE, MARGIN = 0.95, 1.5
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Session:
    """One comparison of the code with itself: log-ratios by cell id, and the cells that were called worse or better."""

    at: float
    ratios: Mapping[str, float]
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Noise:
    """Every session of one machine under one protocol and one set of rules."""

    machine: str
    protocol: str
    sessions: tuple[Session, ...] = field(default=())

    def floors(self) -> dict[str, float]:
        """The floor of each cell, as a fraction (0.04 is 4 %)."""
        seen: dict[str, list[float]] = {}
        for session in self.sessions:
            for cell, ratio in session.ratios.items():
                seen.setdefault(cell, []).append(abs(ratio))
        return {cell: math.expm1(MARGIN * _quantile(values)) for cell, values in seen.items()}


def _quantile(values: list[float]) -> float:
    """The value that SHARE of them do not exceed: the largest one below twenty sessions."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(SHARE * len(ordered)) - 1)]


def noise_path(results: Path, machine: str) -> Path:
    """The file of a machine's noise, there or not."""
    return baseline_path(results, machine).with_suffix(".noise.json")


def read_noise(results: Path, machine: str, protocol: str) -> Noise:
    """What is known of a machine under a protocol; nothing where it was never calibrated, or in another way.

    Raises CannotDo for a file that is not what `write_noise` wrote.
    """
    path = noise_path(results, machine)
    if not path.is_file():
        return Noise(machine, protocol)
    if path.stat().st_size > MAX_BYTES:
        raise CannotDo(f"{path} is too large to be noise floors; remove it and calibrate again")
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["schema"] != SCHEMA:
            raise CannotDo(f"{path} has schema {data['schema']}, written by a later attnbench; this one reads {SCHEMA}")
        if data["protocol"] != protocol:
            return Noise(machine, protocol)
        return Noise(machine, protocol, tuple(_session(one) for one in data["sessions"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CannotDo(f"{path} cannot be read ({type(error).__name__}); remove it and calibrate again") from None


def _session(data: Any) -> Session:
    ratios = {str(cell): float(ratio) for cell, ratio in data["ratios"].items()}
    if not all(math.isfinite(ratio) for ratio in ratios.values()):
        raise ValueError("a ratio that is no number")
    return Session(float(data["at"]), ratios, tuple(str(cell) for cell in data["alarms"]))


def write_noise(results: Path, noise: Noise) -> Path:
    """Keeps it, in one step. Raises CannotDo."""
    path = noise_path(results, noise.machine)
    sessions = [{"at": s.at, "ratios": dict(s.ratios), "alarms": list(s.alarms)} for s in noise.sessions]
    data = {"schema": SCHEMA, "machine": noise.machine, "protocol": noise.protocol, "sessions": sessions}
    write_json(path, data)
    return path


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Strict JSON, put in place in one step. Raises CannotDo."""
    scratch = path.with_name(f".{path.stem}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.is_symlink():
            raise CannotDo(f"{path.parent} is a link; nothing is written through it: remove the link")
        scratch.write_text(json.dumps(encode(data), allow_nan=False), "utf-8")
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise CannotDo(f"{path} cannot be written: {error.strerror}") from None
