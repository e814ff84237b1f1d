"""What is drawn, read back from the SVG; and that drawing leaves nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from bench.report import figures
from bench.report.context import context
from bench.report.palette import COLOURS, chapters
from bench.report.panels import over_length
from bench.report.svg import inline
from bench.store import Run

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = ['<script>alert("x")</script>', '"><svg onload=alert(1)>', r"$\frac{1}{0}$", "\x1b[31m" + "注意", "=cmd|"]


def drawn(run: Run, metric: str = "latency", *, guides: bool = False, folder: Path = Path("x")) -> list[str]:
    seen = context(run, folder)
    panels = over_length(seen, metric)
    (looks,) = chapters(seen.cells)
    plot = figures.plot(panels, seen.metrics[metric], looks, guides=guides)
    return [figures.picture(panel, plot, f"p{i}", panel.title) for i, panel in enumerate(panels)]


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(str(svg).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in parsed(svg).iter(f"{SVG}text")]


def test_a_contender_has_a_marker_at_each_length(a_run, a_sweep) -> None:
    (svg,) = drawn(a_run(a_sweep((128, 256, 512), ("fwd",))))
    marks = [node.get("style", "") for node in parsed(svg).iter(f"{SVG}use")]
    for colour in ("var(--ink)", *COLOURS[:4]):  # the reference and four others
        assert sum(f"fill: {colour}; stroke: var(--panel)" in style for style in marks) == 3


def test_the_axes_say_lengths_and_units(a_run, a_sweep) -> None:
    (svg,) = drawn(a_run(a_sweep((128, 256, 512), ("fwd",))))
    assert {"128", "256", "512", "sequence length (tokens)", "latency", "1 ms"} <= set(texts(svg))


def test_memory_is_drawn_with_the_slopes_of_n_and_n_squared(a_run, a_sweep) -> None:
    (svg,) = drawn(a_run(a_sweep((128, 256, 512), ("fwd",))), "peak", guides=True)
    assert {"O(n)", "O(n²)", "1 MiB"} <= set(texts(svg))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_label_is_text_and_nothing_else(a_run, a_sweep, text: str) -> None:
    run = a_run(a_sweep((128, 256), ("fwd",)))
    run.header.metrics["latency"].__dict__["label"] = text
    (svg,) = drawn(run)
    known = {f"{SVG}{name}" for name in ("svg", "g", "path", "use", "defs", "clipPath", "rect", "text", "style")}
    assert {node.tag for node in parsed(svg).iter()} <= known
    assert not [name for node in parsed(svg).iter() for name in node.attrib if name.lower().startswith("on")]
    assert any(text[:4] in shown or "\\u" in shown for shown in texts(svg))


def test_two_pictures_on_a_page_share_no_id(a_run, a_sweep) -> None:
    one, two = drawn(a_run(a_sweep((128, 256), ("fwd", "fwdbwd"))))
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (one, two)]
    assert ids[0] and ids[1] and not ids[0] & ids[1]
    for svg, own in zip((one, two), ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', svg)) <= own


def test_a_picture_takes_the_pages_ink_and_says_what_it_shows(a_run, a_sweep) -> None:
    (svg,) = drawn(a_run(a_sweep((128, 256), ("fwd",))))
    assert "var(--ink)" in svg and "#1b1c1e" not in svg
    assert parsed(svg).get("role") == "img" and parsed(svg).get("aria-label")


def test_coordinates_are_rounded_and_texts_are_not() -> None:
    source = '<svg viewBox="0 0 1 1"><path d="M 1.2345 2.25 L 3 0.0499"/><text x="1.234">1.2345 ms</text></svg>'
    path, text = parsed(inline(source, "a picture"))
    assert (path.get("d"), text.get("x"), text.text) == ("M 1.2 2.2 L 3 0.0", "1.2", "1.2345 ms")


def test_the_same_run_draws_the_same_bytes(a_run, a_sweep) -> None:
    records = a_sweep((128, 256), ("fwd",))
    assert drawn(a_run(records)) == drawn(a_run(records))


def test_drawing_changes_no_setting_and_needs_no_pyplot(a_run, a_sweep) -> None:
    before = dict(mpl.rcParams)
    drawn(a_run(a_sweep((128, 256), ("fwd",))))
    assert dict(mpl.rcParams) == before
    unwanted = {"matplotlib.pyplot", "torch", "attention_impls"}
    code = f"import sys, bench.report.build; sys.exit(bool({unwanted!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_sheet_is_a_png(a_run, a_sweep, tmp_path: Path) -> None:
    seen = context(a_run(a_sweep((128, 256))), tmp_path)
    panels = over_length(seen, "latency")
    (looks,) = chapters(seen.cells)
    plot = figures.plot(panels, seen.metrics["latency"], looks)
    assert figures.sheet([(panel, plot) for panel in panels], "latency").startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("low", "high", "unit", "expected"),
    [
        (0.9e-3, 11e-3, "s", [1e-3, 2e-3, 5e-3, 1e-2]),
        (1e-6, 1.0, "s", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]),
        (1000, 5000, "B", [1024, 2048, 4096]),
        (2**10, 2**30, "B", [2**12, 2**15, 2**18, 2**21, 2**24, 2**27, 2**30]),
    ],
)
def test_ticks_are_round(low: float, high: float, unit: str, expected: list[float]) -> None:
    assert figures.round_values(low, high, unit) == pytest.approx(expected)


@pytest.mark.parametrize(("low", "high"), [(1e-300, 1e300), (1.0, 1.0000001), (5e-324, 1.0), (1e-9, 1e12)])
@pytest.mark.parametrize("unit", ["s", "B", "1"])
def test_ticks_are_few_whatever_the_range(low: float, high: float, unit: str) -> None:
    values = figures.round_values(low, high, unit)
    assert len(values) <= 8 and all(low <= value <= high for value in values)


def test_a_panel_of_one_point_is_drawn(a_run, record) -> None:
    (svg,) = drawn(a_run([record("softmax.naive")]))
    assert "1024" in texts(svg)
