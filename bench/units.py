"""Base units as text for people; the only place where a number gets a prefix."""

from __future__ import annotations

import math

from bench.errors import UserError

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def show(value: float | int | None, unit: str) -> str:
    """`value` in base `unit` ("s", "B", "1", "op", "flop", "flop/s", "B/s", "token/s") as a short text."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if unit == "s":
        return _scaled(value, _SECONDS)
    if unit in ("B", "B/s"):
        return _bytes(value) + unit[1:]
    if unit in ("flop", "flop/s", "token/s"):
        return _si(value) + unit
    if unit in ("op", "fault", "token"):
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    return f"{value:.3g}"


def percent(ratio: float) -> str:
    """A ratio as a signed change in percent with one decimal: 1.034 -> "+3.4 %"."""
    return f"{(ratio - 1) * 100:+.1f} %"


def fraction(text: str) -> float:
    """ "2.5%" as 0.025, "120%" as 1.2; the sign may be left out. Raises UserError."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not 0 <= share < math.inf:
        raise UserError(f"{text!r} is no percentage; write one as in 2.5% or 120%")
    return share


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    if value == 0:
        return "0 s"
    factor, name = next(((f, n) for f, n in steps if abs(value) >= f * 0.9995), steps[-1])  # 999.7 µs reads 1 ms
    return f"{value / factor:.3g} {name}" if abs(value / factor) < 1000 else f"{value / factor:.0f} {name}"


def _bytes(value: float) -> str:
    for factor, name in _BYTES:
        if abs(value) >= factor:
            return f"{value / factor:.2f} {name}"
    return f"{value:.0f} B"


def _si(value: float) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
