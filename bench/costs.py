"""Claimed and measured growth side by side: the kept measurements, the exponents fitted to them, what contradicts.

The file is strict JSON, one implementation a line: what was measured (lengths, bytes, seconds), how far it went and why
not farther, and where. The exponents stand in it for people; a reader fits them again, by the one rule written here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attention_impls.contract import QUADRATIC, Growth
from bench.errors import CannotDo

KEPT = Path(__file__).resolve().parents[1] / "docs" / "costs.json"
FITTED = ("bytes_exponent", "time_exponent")
BYTES_OFF, TIME_OVER = 0.05, 0.25  # how far a fit may be from the claim


@dataclass(frozen=True)
class Cost:
    """One implementation measured: bytes are None from the length on where they could not be followed.

    workload: what was constant (the mask is the first that the implementation takes). ended: why no longer length was
    measured. bytes_exponent, time_exponent: the fits, None where there is too little to fit.
    """

    workload: str
    n: tuple[int, ...]
    bytes: tuple[int | None, ...]
    seconds: tuple[float, ...]
    ended: str
    max_seconds: float
    max_bytes: int
    torch: str
    machine: str

    @property
    def bytes_exponent(self) -> float | None:
        """p of the curve fixed + b·nᵖ through the last two octaves; scratch of a fixed size is told apart by it."""
        known = [b for b in self.bytes if b is not None]
        if len(known) < 3:
            return None
        first, last = known[-2] - known[-3], known[-1] - known[-2]
        if first <= 0 or last <= 0:
            return 0.0 if first == last == 0 else None
        return math.log2(last / first)

    @property
    def time_exponent(self) -> float | None:
        """The slope of log seconds over log n, least squares over the last three octaves (two, where that is all)."""
        taken = [math.log2(s) for s in self.seconds[-4:]]
        if len(taken) < 3:
            return None
        middle = (len(taken) - 1) / 2
        weights = [i - middle for i in range(len(taken))]
        return sum(w * t for w, t in zip(weights, taken, strict=True)) / sum(w * w for w in weights)

    @property
    def range(self) -> str:
        """The lengths, as in 128–16384; those of the bytes too, where they end before."""
        if not self.n:
            return "none"
        known = [n for n, b in zip(self.n, self.bytes, strict=True) if b is not None]
        short = f" (bytes to {known[-1]})" if known and known[-1] != self.n[-1] else ""
        return f"{self.n[0]}–{self.n[-1]}{short}"


def contradicts(claim: Growth | None, cost: Cost, *, times: bool = True) -> list[str]:
    """Sentences on what the measurement says against the claim. Who claims nothing is held to QUADRATIC as a bound."""
    held, found = claim or QUADRATIC, []
    grown, slope = cost.bytes_exponent, cost.time_exponent
    if grown is None or slope is None:
        return [f"nothing can be fitted to n = {cost.range}: {cost.ended}"] if claim else []
    over = grown - held.bytes
    if over > BYTES_OFF or (claim and over < -BYTES_OFF):
        found.append(f"bytes grow as n^{grown:.2f}, {'claimed' if claim else 'at most'} n^{held.bytes:g}")
    if times and slope > held.time + TIME_OVER:
        found.append(f"time grows as n^{slope:.2f}, {'claimed' if claim else 'at most'} n^{held.time:g}")
    return found


def read(path: Path = KEPT) -> dict[str, Cost]:
    """What is kept, by implementation; nothing where there is no file. Raises CannotDo for a file that is no such."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text("utf-8"), parse_constant=_refused)
        return {name: _cost(entry) for name, entry in data.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CannotDo(f"{path} is no file of attnbench costs ({error}); name another by --file") from None


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no number of strict JSON")


def _cost(entry: Mapping[str, Any]) -> Cost:
    lists: dict[str, Any] = {name: tuple(entry[name]) for name in ("n", "bytes", "seconds")}
    return Cost(**{name: value for name, value in {**entry, **lists}.items() if name not in FITTED})


def write(path: Path, costs: Mapping[str, Cost]) -> None:
    """Replaces the file in one move, so that a reader or an interruption never meets half of it."""
    lines = [f"{json.dumps(name)}: {_line(cost)}" for name, cost in sorted(costs.items())]
    fresh = path.with_suffix(".new")
    fresh.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    fresh.replace(path)


def _line(cost: Cost) -> str:
    fits = zip(FITTED, (cost.bytes_exponent, cost.time_exponent), strict=True)
    fitted = {name: value if value is None else round(value, 3) for name, value in fits}
    return json.dumps({**asdict(cost), **fitted}, ensure_ascii=False, allow_nan=False)


def exponents(values: Iterable[float | None]) -> tuple[str, ...]:
    """Exponents as people read them: two decimals at most, a dash where there is none."""
    return tuple("–" if value is None else f"{value:.2f}".rstrip("0").rstrip(".") for value in values)


def claimed(claim: Growth | None) -> tuple[str, str]:
    """What is claimed of time and of bytes: a bound where nothing is said."""
    if claim is None:
        return f"≤ {QUADRATIC.time:g}", f"≤ {QUADRATIC.bytes:g}"
    return f"≤ {claim.time:g}", f"{claim.bytes:g}"
