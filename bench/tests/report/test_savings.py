"""What saves memory: ratios worked out by hand from a made-up run."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.record import Reading
from bench.report.context import context
from bench.report.savings import savings, without
from bench.report.sections.savings import SECTION

NAIVE, CHUNKED = "softmax.naive", "softmax.naive+query_chunks:128"


@pytest.mark.parametrize(
    ("subject", "bare"),
    [
        ("softmax.naive", "softmax.naive"),
        ("softmax.naive+recompute+query_chunks:64", "softmax.naive"),
        ("softmax.naive+recompute+in:encoder:layers-4+checkpoint:2", "softmax.naive+in:encoder:layers-4"),
    ],
)
def test_a_subject_without_its_transforms_keeps_its_layer(subject, bare):
    assert without(subject) == bare


def seen(a_run, *records, **changes):
    return {row.subject: row for row in savings(context(a_run(list(records), **changes), Path()))[0].rows}


def test_each_is_held_against_the_same_without_transforms_and_a_bare_one_against_the_reference(a_run, record):
    rows = seen(a_run, *(record(s, n) for n in (256, 1024) for s in ("softmax.sdpa_flash", NAIVE, CHUNKED)))
    assert {name: row.against for name, row in rows.items()} == {
        "softmax.sdpa_flash": "softmax.sdpa_flash",
        NAIVE: "softmax.sdpa_flash",
        CHUNKED: NAIVE,
    }
    short, long = rows[CHUNKED].ratios
    assert (short.length, long.length) == (256, 1024)
    assert long.bytes == pytest.approx(10 / 66)  # 10 MiB against 66 MiB
    assert short.bytes == pytest.approx(10 * 4 / 66)  # a line against a square: 2.5 MiB against 4.125 MiB
    assert long.error == pytest.approx(1.5)
    assert long.time == pytest.approx(7 / 6, rel=0.05)


def test_it_pays_from_the_first_length_on_which_all_longer_ones_need_fewer_bytes_too(a_run, record):
    lengths = (128, 256, 512, 1024)
    records = [record(s, n) for n in lengths for s in (NAIVE, CHUNKED)]
    rows = seen(a_run, *records)
    # 1.25 MiB against 1.03 at 128, 2.5 against 4.1 at 256
    assert (rows[NAIVE].pays, rows[CHUNKED].pays) == (None, 256)
    odd = [
        replace(r, readings={**r.readings, "peak_forward": Reading("B", (2**40,))})
        if r.key.cell.startswith(CHUNKED) and "n512" in r.key.cell
        else r
        for r in records
    ]
    assert seen(a_run, *odd)[CHUNKED].pays == 1024


def with_longest(record, n, verified):
    facts = {"longest.limit": 2**26, "longest.verified": verified, "longest.why": "measured: 1 fits"}
    return replace(record, readings={**record.readings, "longest": Reading("token", (float(n),))}, facts=facts)


def test_the_longest_sequence_says_whether_it_was_measured(a_run, record, tmp_path):
    records = [with_longest(record(NAIVE), 1024, True), with_longest(record(CHUNKED), 9999, False)]
    made = context(a_run(records), tmp_path)
    rows = {row.subject: row for row in savings(made)[0].rows}
    assert (rows[NAIVE].longest.verified, rows[CHUNKED].longest.verified) == (True, False)
    page = str(SECTION.render(made))
    assert "Longest within 64.00 MiB" in page and "9,999" in page
    assert page.count("predicted") == 1 and page.count('">measured') == 1


def test_without_transforms_and_searches_the_section_is_left_out(a_run, record, tmp_path):
    assert str(SECTION.render(context(a_run([record("softmax.sdpa_flash"), record(NAIVE)]), tmp_path))) == ""


def test_what_is_not_there_has_no_ratio(a_run, record, failure):
    rows = seen(a_run, record(NAIVE, 256), record(CHUNKED, 256), failure(NAIVE, "raised", "no"), record(CHUNKED))
    assert [r.bytes for r in rows[CHUNKED].ratios] == [pytest.approx(40 / 66), None]
    assert rows[CHUNKED].pays is None  # at 1,024 nothing is known
