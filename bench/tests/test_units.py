"""Texts of numbers, held to texts written by hand."""

from __future__ import annotations

import math

import pytest

from bench.errors import UserError
from bench.units import fraction, percent, show


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "s", "0 s"),
        (1.5, "s", "1.5 s"),
        (0.0123, "s", "12.3 ms"),
        (4.56e-6, "s", "4.56 µs"),
        (2e-9, "s", "2 ns"),
        (3e-10, "s", "0.3 ns"),
        (4000, "s", "4000 s"),
        (0, "B", "0 B"),
        (1023, "B", "1023 B"),
        (1024, "B", "1.00 KiB"),
        (67_108_864, "B", "64.00 MiB"),
        (3 * 2**30, "B", "3.00 GiB"),
        (2**21, "B/s", "2.00 MiB/s"),
        (2.5e12, "flop/s", "2.5 Tflop/s"),
        (999, "flop", "999 flop"),
        (1234, "op", "1,234"),
        (1.5, "fault", "1.5"),
        (1.234e-7, "1", "1.23e-07"),
        (None, "s", "–"),
        (math.inf, "s", "inf"),
        (math.nan, "B", "nan"),
    ],
)
def test_a_number_reads_as_people_write_it(value: float | None, unit: str, text: str) -> None:
    assert show(value, unit) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.034, "+3.4 %"), (1.0, "+0.0 %"), (0.0, "-100.0 %"), (0.5, "-50.0 %"), (2.2, "+120.0 %")]
)
def test_a_ratio_reads_as_a_change_in_percent(ratio: float, text: str) -> None:
    assert percent(ratio) == text


@pytest.mark.parametrize(
    ("text", "share"), [("2.5%", 0.025), ("120%", 1.2), ("25 %", 0.25), ("3", 0.03), ("0%", 0.0), (" 10% ", 0.1)]
)
def test_a_percentage_may_have_a_fraction_and_exceed_a_hundred(text: str, share: float) -> None:
    assert fraction(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "two", "-3%", "nan%", "inf", "2,5%"])
def test_what_is_no_percentage_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match=r"2\.5%"):
        fraction(text)
