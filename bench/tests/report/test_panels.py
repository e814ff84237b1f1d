"""Which points stand where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.record import Reading
from bench.report.context import Context, context
from bench.report.palette import COLOURS, chapters
from bench.report.panels import over_heads, over_length, undrawn
from bench.store import Run


@pytest.fixture
def see(a_run: Callable[..., Run], tmp_path: Path) -> Callable[..., Context]:
    return lambda records: context(a_run(records), tmp_path)


def test_a_panel_for_each_setting_and_a_point_for_each_cell(see, a_sweep) -> None:
    panels = over_length(see(a_sweep((128, 256), ("fwd", "fwdbwd"), ("f32", "bf16"))), "latency")
    assert [panel.title for panel in panels] == ["fwd · f32", "fwd · bf16", "fwdbwd · f32", "fwdbwd · bf16"]
    assert all(len(panel.points) == 5 * 2 for panel in panels)


def test_heads_measured_at_one_length_get_panels_of_their_own(see, a_sweep) -> None:
    seen = see(a_sweep((512, 1024), ("fwd",)))
    assert [panel.title for panel in over_length(seen, "latency")] == ["h8"]
    (heads,) = over_heads(seen, "latency")
    assert (heads.title, sorted(set(heads.points["x"]))) == ("n1024", [4, 8, 16])


def test_a_run_of_one_length_is_still_drawn(see, record) -> None:
    (panel,) = over_length(see([record("softmax.naive")]), "latency")
    assert list(panel.points["x"]) == [1024]


def test_decoding_is_drawn_over_the_keys(see, record) -> None:
    cells = [record("softmax.naive", n) for n in (1024, 2048)]
    for cell in cells:
        cell.cell["q_len"] = 1
    (panel,) = over_length(see([*cells, record("softmax.naive", 512)]), "latency")[:1]
    assert (panel.title, list(panel.points["x"])) == ("q1", [1024, 2048])


def test_what_has_no_point_is_counted(see, record, failure) -> None:
    zero = record("softmax.naive", 256, readings={"error_out": Reading("1", (0.0,))})
    none = record("softmax.naive", 512, readings={"error_out": Reading("1", why_missing="no oracle")})
    endless = record("softmax.naive", 128, readings={"error_out": Reading("1", (float("inf"),))})
    seen = see([zero, none, endless, failure("softmax.naive", "timeout", ""), record("softmax.tiled")])
    assert sum(len(panel.points) for panel in over_length(seen, "error_out")) == 1
    words = undrawn(seen, "error_out")
    for part in ("1 timeout", "1 without this number", "1 exactly zero", "1 infinite"):
        assert part in words


def test_every_contender_stands_in_one_portion_with_the_reference_in_each(see, record) -> None:
    names = [f"softmax.kernel_{i}" for i in range(17)]
    portions = chapters(see([record(name) for name in ["softmax.sdpa_flash", *names]]).cells)
    assert [len(portion) for portion in portions] == [6, 7, 7]
    assert all(next(iter(portion)) == "softmax.sdpa_flash" for portion in portions)
    assert sorted(name for portion in portions for name in list(portion)[1:]) == sorted(names)


def test_contenders_of_a_portion_differ_in_colour_and_in_marker(see, record) -> None:
    names = ["softmax.sdpa_flash", *(f"softmax.kernel_{i}" for i in range(len(COLOURS)))]
    (portion,) = chapters(see([record(name) for name in names]).cells)
    assert len({look.colour for look in portion.values()}) == len(names)
    assert len({look.marker for look in portion.values()}) == len(names)
    assert len({look.sign for look in portion.values()}) == len(names)
