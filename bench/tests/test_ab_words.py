"""A kept comparison: read as data from strangers, explained, and made a comment that cannot do harm."""

import json
from dataclasses import replace

import pytest

from bench import store
from bench.ab import words
from bench.ab.result import Comparison, Row, SideInfo, from_data, to_data
from bench.errors import CannotDo, UserError

ROUNDS = (((1e-3, 1.06e-3),) * 16,) * 4
SLOW = Row(
    "softmax.naive/b1-h4-n128-d64-f32-causal/fwd/cpu1", "latency", "worse", "+6.0 % in the screen", 1e-3, 1.06e-3, "s",
    1.06, 1.05, 1.07, 1e-6, 0.03, 0.01, 5, ROUNDS, ROUNDS,
)  # fmt: skip
SAME = replace(SLOW, cell="softmax.tiles/b1-h4-n128-d64-f32-causal/fwd/cpu1", verdict="same", ratio=1.001, confirmed=())
BYTES = Row(SLOW.cell, "peak_forward", "worse", "by +1 B", 100.0, 101.0, "B", 1.01)
FOUND = Comparison(
    "20261130t000000z-0a1b2c3d", "2026-11-30T00:00:00+00:00", "quartz-2c-8g-0001",
    SideInfo("main (0123abcd)", "0123abcd", "this checkout's"), SideInfo("working tree", "", "this checkout's"),
    "0a1b2c3d4e5f", {"threshold": 0.03, "rate": 0.05, "allowed": 1}, 61.0, (), (SAME, SLOW, BYTES),
)  # fmt: skip


def test_a_comparison_comes_back_from_its_file_as_it_was(tmp_path):
    path = store.save_comparison(tmp_path, to_data(FOUND))
    assert path == tmp_path / "comparisons" / f"{FOUND.id}.json"
    for name in ("latest", "20261130", str(path)):
        assert from_data(store.read_comparison(store.find_comparison(tmp_path, name))) == FOUND
    with pytest.raises(UserError, match="no comparison 'x'"):
        store.find_comparison(tmp_path, "x")


HOSTILE = {
    "another kind": lambda d: d | {"kind": "run"},
    "a later schema": lambda d: d | {"schema": 2},
    "an id that climbs": lambda d: d | {"id": "../../etc"},
    "an id with a newline": lambda d: d | {"id": "abc\n"},
    "no rows": lambda d: {k: v for k, v in d.items() if k != "rows"},
    "a row that is a text": lambda d: d | {"rows": ["x"]},
    "a verdict nobody gives": lambda d: d | {"rows": [{**d["rows"][0], "verdict": "<b>"}]},
    "a number that is a text": lambda d: d | {"seconds": "61"},
    "a number that is a bool": lambda d: d | {"seconds": True},
    "a number beyond floats": lambda d: d | {"seconds": 10**400},
    "a text without end": lambda d: d | {"machine": "x" * 5000},
    "a round of three": lambda d: d | {"rows": [{**d["rows"][0], "screened": [[[1, 2, 3]]]}]},
    "rows without end": lambda d: d | {"rows": [d["rows"][0]] * 400_001},
    "no table at all": lambda d: [],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_a_comparison_is_refused_with_a_sentence(name):
    plain = json.loads(json.dumps(to_data(FOUND)))
    assert from_data(plain) == FOUND
    with pytest.raises(CannotDo, match=r"\w+ \w+"):
        from_data(HOSTILE[name](plain))


@pytest.mark.parametrize("text", ["", "{", '{"a": NaN}', "[" * 100_000], ids=["empty", "torn", "nan", "deep"])
def test_a_file_that_is_no_json_of_ours_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text, "utf-8")
    with pytest.raises(CannotDo, match="is no JSON of ours"):
        store.read_comparison(path)


def test_the_worst_comes_first_and_findings_are_findings():
    assert [row.verdict for row in FOUND.worst_first()] == ["worse", "worse", "same"]
    assert FOUND.worst_first()[0] is SLOW
    assert FOUND.regressed
    assert not replace(FOUND, rows=(SAME, replace(SLOW, verdict="unclear"))).regressed


def test_an_explanation_names_everything_a_verdict_rests_on():
    text = words.explain(FOUND, SLOW.cell)
    expected = (
        "4 pairs of processes, 64 rounds, 5 calls a block",
        "+6.00 %",
        "must be below 0.05",
        "must exceed 3.00 %",
        "resolve 1.00 %",
        "fresh pairs: +6.00 %",
        "peak_forward: worse",
        "by +1 B",
    )
    assert [said for said in expected if said not in text] == []
    assert "the screen did not suspect it" in words.explain(FOUND, SAME.cell)
    with pytest.raises(UserError, match="did you mean"):
        words.explain(FOUND, SLOW.cell.replace("naive", "naiv"))


def test_a_comment_is_never_longer_than_github_takes_and_says_what_it_left_out():
    rows = tuple(replace(SLOW, cell=f"{i}-{SLOW.cell}", why="µ" * 3000) for i in range(400))
    text = words.comment(replace(FOUND, rows=rows))
    assert len(text.encode()) <= words.LARGEST_COMMENT
    shown = text.count("fwd/cpu1")
    assert 0 < shown < 400
    assert f"{400 - shown} rows more did not fit here" in text


EVIL = "@everyone <img src=x onerror=alert(1)> http://evil.example [a](b) #1 ``` `x` | y\n# title"


def test_a_strangers_texts_stay_inside_code_in_a_comment():
    """Mentions, links, HTML and table bars mean nothing between back-ticks; a fence is longer than any run inside."""
    found = replace(FOUND, machine=EVIL, base=SideInfo(EVIL, EVIL, EVIL), rows=(replace(SLOW, cell=EVIL, why=EVIL),))
    text = words.comment(found)
    lines = [line for line in text.splitlines() if "everyone" in line]
    assert len(lines) == 3
    for line in lines:
        outside = _outside_code(line)
        assert not any(word in outside for word in ("@", "<", "http", "[", "#", "`")), outside


def _outside_code(line):
    """What of a line stands outside code spans, by CommonMark's rule: a span ends at a run of as many back-ticks."""
    found, at = "", 0
    while at < len(line):
        if line[at] != "`":
            found, at = found + line[at], at + 1
            continue
        fence = len(line[at:]) - len(line[at:].lstrip("`"))
        end = at + fence
        while True:
            end = line.find("`", end)
            assert end >= 0, "a span that never ends"
            run = len(line[end:]) - len(line[end:].lstrip("`"))
            if run == fence:
                break
            end += run
        at = end + fence
    return found
