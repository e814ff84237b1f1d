"""The page as a browser reads it: complete, self-contained, and deaf to what strangers put into a run."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.errors import CannotDo
from bench.record import OUTCOMES, MetricInfo, Reading, Record
from bench.report import sections
from bench.report.build import build
from bench.store import Run

VOID = {"meta", "input", "link", "br", "img", "hr", "wbr", "path", "use", "rect"}


class Page(HTMLParser):
    """What a test asks of a page: tags with their attributes, visible text, the rows of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags, self.rows, self.visible, self.inside = text, [], [], "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append("")
            self.inside = True
        elif tag in ("td", "th"):
            self.rows[-1] += "\t"

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "table"

    def handle_data(self, data: str) -> None:
        self.visible += data
        if self.inside:
            self.rows[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., Page]:
    return lambda run, baseline=None: Page(build(run, tmp_path, baseline=baseline).read_text())


@pytest.fixture(scope="module")
def mixed(a_run, a_sweep, failure) -> Run:
    """A sweep with one cell of every outcome that is not ok."""
    bad = [o for o in OUTCOMES if o not in ("ok", "imprecise")]
    failures = [failure(f"softmax.kernel_{i}", o, f"because of reason {i}", 256) for i, o in enumerate(bad)]
    return a_run([*a_sweep((128, 256), ("fwd",)), *failures])


@pytest.fixture(scope="module")
def built(mixed: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the report of `mixed`, held against itself."""
    return build(mixed, tmp_path_factory.mktemp("reports"), baseline=mixed).parent


@pytest.fixture(scope="module")
def seen(built: Path) -> Page:
    return Page((built / "index.html").read_text())


def cell_rows(page: Page) -> list[str]:
    return [row for row in page.rows if "attnbench run --cell" in row]


def test_every_cell_has_a_row_with_the_command_that_repeats_it(seen: Page, mixed: Run) -> None:
    rows = cell_rows(seen)
    assert len(rows) == len(mixed.records)
    for record in mixed.records:
        assert sum(f"attnbench run --cell {record.key.cell}\t" in f"{row}\t" for row in rows) == 1


def test_every_failed_cell_shows_its_outcome_and_its_sentence(seen: Page, mixed: Run) -> None:
    rows = cell_rows(seen)
    for record in mixed.records:
        (row,) = [row for row in rows if f"--cell {record.key.cell}\t" in f"{row}\t"]
        assert record.outcome.replace("_", " ") in row and record.note in row


def test_every_outcome_is_explained_where_it_is_linked(seen: Page) -> None:
    assert {f"outcome-{outcome}" for outcome in OUTCOMES} <= {attrs.get("id") for _, attrs in seen.tags}


def test_links_lead_only_to_places_on_the_page(seen: Page) -> None:
    ids = [attrs["id"] for _, attrs in seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for attrs in seen.all("a"):
        assert str(attrs["href"])[0] == "#" and str(attrs["href"])[1:] in ids


def test_nothing_is_loaded_from_anywhere(seen: Page) -> None:
    for tag, attrs in seen.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "img", "image", "audio", "video")
        for name, value in attrs.items():
            if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background"):
                assert str(value).startswith("#"), (tag, name, value)
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", seen.text)
    assert set(re.findall(r"https?://[^\s\"'<]+", seen.text)) <= {"http://www.w3.org/1999/xlink"}  # a name, not a place
    (policy,) = [attrs for attrs in seen.all("meta") if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in str(policy["content"])


def test_the_first_screen_names_the_winners_of_each_length(page, a_run, a_sweep) -> None:
    seen = page(a_run(a_sweep((128, 1024, 4096), ("fwd",))))
    at = next(i for i, row in enumerate(seen.rows) if "n 128" in row and "n 4,096" in row)
    fastest, leanest, exact = seen.rows[at + 1 : at + 4]
    assert fastest.startswith("\tFastest") and fastest.split("\t")[2].split()[0] == "softmax.sdpa_flash"
    assert fastest.split("\t")[4].split()[0] == "linear.chunked"  # 4 ms against 32 ms
    assert re.search(r"[78]\.\d+× faster", fastest.split("\t")[4])
    assert leanest.split("\t")[4].split()[0] == "softmax.sdpa_flash"
    assert "12.00\N{NO-BREAK SPACE}MiB" in leanest.split("\t")[4]
    assert exact.split("\t")[4].split()[0] == "softmax.naive"


def test_a_tie_with_the_reference_says_so(page, a_run, record) -> None:
    twins = [
        record(name, readings={"latency": Reading("s", (1.0,) * 8)}) for name in ("softmax.sdpa_flash", "softmax.tiled")
    ]
    (row,) = [row for row in page(a_run(twins)).rows if row.startswith("\tFastest")]
    assert "softmax.sdpa_flash, softmax.tiled" in row and "tie" in row and "the reference among them" in row


def test_a_metric_never_heard_of_is_in_the_table_and_the_csv(page, a_run, record, tmp_path: Path) -> None:
    info = {"sparkle": MetricInfo("B/s", "higher", "timed", "sparkle rate")}
    one = record("softmax.naive", readings={"sparkle": Reading("B/s", (2.0**30,)), "unnamed": Reading("1", (7.25,))})
    seen = page(a_run([one], metrics=info))
    (row,) = cell_rows(seen)
    assert "1.00 GiB/s" in row and "7.25" in row
    assert "sparkle rate" in seen.visible and "unnamed" in seen.visible
    (line,) = read(next(tmp_path.iterdir()), "cells")
    assert (line["sparkle [B/s]"], line["unnamed [1]"]) == ("1073741824.0", "7.25")


def test_a_new_section_is_one_new_file(page, a_run, record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from bench.report.section import Section\nSECTION = Section('News', 15, lambda context: '<b>plain</b>')\n"
    (tmp_path / "news.py").write_text(code)
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path)])
    seen = page(a_run([record("softmax.naive")]))
    titles = re.findall(r"<h2[^>]*>([^<]*)</h2>", seen.text)
    assert titles[:3] == ["Who wins", "News", "Latency over length"]
    assert "&lt;b&gt;plain" in seen.text  # what is not Markup is text


def test_a_file_without_a_section_is_named(a_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hollow.py").write_text("")
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path)])
    with pytest.raises(CannotDo, match=r"hollow holds no SECTION"):
        build(a_run([]), tmp_path)


def test_regressions_are_shown_against_a_baseline(page, a_run, record) -> None:
    before = a_run([record("softmax.sdpa_flash"), record("softmax.naive")], run="20261128t000000z-base")
    heavier = {**before.records[1].readings, "peak_forward": Reading("B", (99 * 2**20,))}
    seen = page(a_run([before.records[0], replace(before.records[1], readings=heavier)]), before)
    (row,) = [row for row in seen.rows if row.startswith("\tworse")]
    assert "peak_forward" in row and "66.00 MiB" in row and "99.00 MiB" in row and "+50.0 %" in row
    assert "Regressions: 1 worse" in seen.visible and "20261128t000000z-base" in seen.visible


def test_without_a_baseline_there_is_no_such_part(page, a_run, record) -> None:
    assert "Changes against the baseline" not in page(a_run([record("softmax.naive")])).visible


def test_environment_methods_and_what_was_left_out_are_told(seen: Page) -> None:
    for text in ("Quartz 9000", "2.13.0", "perf_counter", "A = softmax(scale · q kᵀ)", "arXiv 2006.16236",
                 "nothing: a mechanism of its own", "no layer was asked for", "mask=packed:8 direction=train",
                 "attnbench run --suite made_up", "0123abcd4567"):  # fmt: skip
        assert text in seen.visible


def test_an_unfinished_run_failures_and_alarms_are_said_first(page, a_run, record, failure) -> None:
    records = [
        replace(record("softmax.naive"), alarms=("zero spread",)),
        failure("softmax.tiled", "crashed", "signal 11"),
    ]
    head = page(a_run(records, finished=False, plan={"cells": ["a", "b", "c"]})).visible
    head = head[: head.index("Who wins")]
    assert "2 of 3 planned cells" in head and "1 cell failed (1 crashed)" in head and "1 cell with an alarm" in head


def test_an_imprecise_cell_is_marked_and_a_companion_too(page, a_run, record) -> None:
    odd = record("softmax.tiled", outcome="imprecise", note="3.1 times its budget")
    rows = cell_rows(page(a_run([record("softmax.sdpa_flash", companion=True), odd])))
    assert "companion" in rows[0] and "imprecise" in rows[1] and "3.1 times its budget" in rows[1]


@pytest.mark.parametrize("empty", [{}, {"metrics": {}, "texts": {}, "machine": {}, "plan": {}, "command": ()}])
def test_a_run_without_records_is_a_page_too(page, a_run, empty: dict[str, object]) -> None:
    assert "nothing to answer" in page(a_run([], **empty)).visible


def test_a_record_without_coordinates_has_its_row(page, a_run, record) -> None:
    bare = replace(record("softmax.naive"), cell={})
    odd = replace(record("softmax.tiled"), cell={"subject": None, "q_len": "x", "heads": True, "news": 1})
    assert len(cell_rows(page(a_run([bare, odd])))) == 2


@pytest.mark.slow
def test_six_hundred_cells_fit_in_three_megabytes(a_run, a_sweep, tmp_path: Path) -> None:
    names = [f"softmax.kernel_{i}+query_chunks:128" for i in range(9)]
    records = a_sweep(
        (128, 256, 512, 1024, 2048, 4096), ("fwd", "fwdbwd"), ("f32", "bf16", "f16"), ["softmax.sdpa_flash", *names]
    )
    assert len(records) == 480
    records += a_sweep((8192, 16384), ("fwd", "fwdbwd"), ("f32", "bf16", "f16"), ["softmax.sdpa_flash", *names])
    path = build(a_run(records), tmp_path)
    assert len(records) == 600 and path.stat().st_size < 3_000_000
    assert len(cell_rows(Page(path.read_text()))) == 600


HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": '"><svg onload=alert(1)>',
    "quote": "' onmouseover='alert(1)",
    "mathematics": r"$\frac{1}{0}$ \$ $",
    "formula": "=cmd|' /C calc'!A0",
    "terminal": "\x1b]0;owned\x07\x1b[31m",
    "template": "{{ 7 * 7 }}{% include '/etc/passwd' %}",
    "bidi": "\u202egnp.exe",
    "nul": "a\x00b\r\n",
    "long": "x" * 10_000,
    "emoji": "注意 \U0001f600",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_in_every_field_stays_text(page, a_run, record, text: str, tmp_path: Path) -> None:
    records = [
        spoilt(record(subject, n), text) for subject in ("softmax.sdpa_flash", "softmax.naive") for n in (128, 256)
    ]
    run = a_run(records, **spoilt_header(text))
    seen = page(run, replace(run, records=tuple(replace(r, outcome="raised") for r in records)))
    assert len(seen.text) < 1_000_000
    assert len(seen.all("script")) == 1
    assert not [name for _, attrs in seen.tags for name in attrs if name.startswith("on")]
    assert {tag for tag, _ in seen.tags} <= KNOWN_TAGS
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", seen.text)
    assert "49" not in re.findall(r"\b49\b", seen.visible) or "7 * 7" not in text
    for table in (tmp_path / run.header.run / "tables").glob("*.csv"):
        with table.open(newline="") as source:
            for row in csv.reader(source):
                assert not [value for value in row if re.match(r"[=+@\t\r]|-(?![\d.])", value)]


KNOWN_TAGS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "h1", "small", "code", "p", "nav", "ul", "li",
    "main", "section", "h2", "span", "strong", "div", "table", "caption", "thead", "tr", "th", "tbody", "td", "b",
    "wbr", "figure", "figcaption", "svg", "defs", "g", "path", "use", "clippath", "rect", "text", "details", "summary",
    "label", "input", "select", "option", "output", "dl", "dt", "dd", "h3", "article", "pre", "footer", "script",
}  # fmt: skip


def spoilt(record: Record, text: str) -> Record:
    """The record with `text` in every place where a text may stand; lengths and numbers stay."""
    words = {name: text for name, value in record.cell.items() if isinstance(value, str) or value is None}
    subject = f"{text}{record.cell['subject']}"
    cell = {**record.cell, **words, "subject": subject, "reference": f"{text}softmax.sdpa_flash", text: text}
    readings = {
        "latency": record.readings["latency"],
        text: Reading(text, (1.0,)),
        f"{text}2": Reading(text, why_missing=text),
    }
    key = replace(record.key, cell=text + record.key.cell)
    return replace(
        record, key=key, cell=cell, readings=readings, backend=text, note=text, facts={text: text}, alarms=(text,)
    )


def spoilt_header(text: str) -> dict[str, object]:
    info = MetricInfo(text, text, "timed", text)
    known = {name: MetricInfo("s", "lower", "timed", text) for name in ("latency", "peak_forward", "error_out")}
    return {
        "created": text, "commit": text, "dirty": text, "protocol": {text: text}, "environment": {text: text},
        "plan": {"suite": text, "reference": text, "cells": [text], text: text}, "machine": {"id": text, text: text},
        "protocol_digest": text, "environment_digest": text, "command": (text, text), "metrics": {**known, text: info},
        "texts": {text: {"doc": text, "formula": text, text: text}},
        "left_out": ({"what": text, "why": text, text: text},),
    }  # fmt: skip


@pytest.mark.parametrize("run", ["../up", "/etc/x", "", "a/b", "a" * 200, "A", ".hidden", "a\n"])
def test_an_id_that_is_a_path_names_no_folder(a_run, tmp_path: Path, run: str) -> None:
    with pytest.raises(CannotDo):
        build(a_run([], run=run), tmp_path / "reports")
    assert not (tmp_path / "reports").exists()


def read(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / "tables" / f"{table}.csv").open(newline="") as source:
        return list(csv.DictReader(source))


def test_the_csv_holds_every_cell_in_base_units(built: Path, mixed: Run) -> None:
    lines = read(built, "cells")
    assert [line["id"] for line in lines] == [record.key.cell for record in mixed.records]
    peak = next(line for line in lines if line["subject"] == "softmax.naive" and line["q_len"] == "256")
    assert (peak["peak_forward [B]"], peak["heads"], peak["outcome"]) == (str(66 * 2**20 / 16), "8", "ok")
    assert all(line["repeat"] == f"attnbench run --cell {line['id']}" for line in lines)


def test_the_csv_holds_every_raw_sample(built: Path, mixed: Run) -> None:
    lines = [line for line in read(built, "samples") if line["metric"] == "latency"]
    assert [float(line["value"]) for line in lines] == [
        value for record in mixed.records if "latency" in record.readings for value in record.readings["latency"].values
    ]


def test_every_picture_named_on_the_page_is_a_png_beside_it(built: Path, seen: Page) -> None:
    named = set(re.findall(r"figures/([\w.-]+\.png)", seen.text))
    there = {path.name: path.read_bytes()[:4] for path in built.glob("figures/*")}
    assert named == set(there) and set(there.values()) == {b"\x89PNG"}


def test_a_second_report_of_a_run_leaves_nothing_of_the_first(a_run, a_sweep, tmp_path: Path) -> None:
    build(a_run(a_sweep((128, 1024), ("fwd",))), tmp_path)
    index = build(a_run(a_sweep((128, 256), ("fwd",))), tmp_path)
    assert not list(index.parent.glob("figures/*heads*"))


def test_every_table_has_a_head_and_every_picture_a_text(seen: Page) -> None:
    assert all(attrs.get("aria-label") for attrs in seen.all("svg"))
    assert all(attrs.get("scope") in ("row", "col") for attrs in seen.all("th"))
    assert seen.all("html")[0]["lang"] == "en" and len(seen.all("h1")) == 1
    for attrs in seen.all("section"):
        assert attrs["aria-labelledby"] in [other.get("id") for other in seen.all("h2")]


def test_a_folder_that_cannot_be_written_is_said(a_run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotDo, match="--out"):
        build(a_run([]), tmp_path / "file")
