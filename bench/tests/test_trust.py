"""The campaigns' own parts: kept rounds, real extra work, and rules applied to rounds known by construction."""

import json
import random
import subprocess
import sys
from math import log

import pytest

from bench.ab.pairs import Block, Driver, Pair
from bench.ab.sides import here
from bench.ab.verdict import Rules
from bench.cell import parse_id
from bench.protocol import Protocol
from bench.trust import pairs, raw, slowed, tables
from bench.trust.extra_work import key
from bench.trust.rules import Found, alarms, by_class, class_of, detection, effects

CELLS = {i: parse_id(f"softmax.naive/b1-h4-n{n}-d64-f32-full/fwd/cpu1") for i, n in enumerate((32, 64, 128))}


def test_a_torn_last_line_is_lost_alone_and_written_over(tmp_path):
    path = tmp_path / "raw.gz"
    for number in range(3):
        raw.append(path, {"number": number})
    whole = path.read_bytes()
    for cut in (1, 5, 12):
        path.write_bytes(whole[:-cut])
        assert [line["number"] for line in raw.read(path)] == [0, 1]
    raw.append(path, {"number": 2})
    assert path.read_bytes() == whole
    path.write_bytes(whole + b"\x1f\x8b rubbish")
    assert len(raw.read(path)) == 3


def test_rows_are_read_off_the_line_between_two_that_were_timed():
    known = {1: 1e-6, 101: 3e-6, 201: 7e-6}
    assert slowed.rows_for(2e-6, known) == 51
    assert slowed.rows_for(5e-6, known) == 151
    assert (
        slowed.rows_for(13e-6, known) == 1201 - 800
    )  # beyond the last: by the line through the ends, 200 rows in 6 µs
    assert slowed.rows_for(-1e-6, known) == 1


def test_extra_work_is_really_done_where_it_was_asked_for_and_changes_no_answer(tmp_path):
    name = "softmax.naive"
    program = f"""
import json, torch
from attention_impls import catalogue
from bench.cell import parse_id
from bench.step import make
found = {{}}
for n in (32, 64):
    for direction in ("fwd", "fwdbwd"):
        cell = parse_id(f"{name}/b1-h2-n{{n}}-d16-f32-full/{{direction}}/cpu1")
        step = make(catalogue.find("{name}"), cell, 1)
        seen = step.evidence()
        found[f"{{n}} {{direction}}"] = [seen.forward["mm"], float(step.seen(0).out.double().sum())]
print(json.dumps(found))
"""

    def seen(root):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                              cwd=tmp_path, env={"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"})  # fmt: skip
        return json.loads(done.stdout)

    before = seen(slowed.SOURCE)
    with slowed.folder({key(name, 64, "fwdbwd"): 3000, key(name, 32, "fwd"): 1}, "slow") as side:
        after = seen(side.place.root)
        assert side.kernels.is_relative_to(side.place.root)
    products = {cell: after[cell][0] - before[cell][0] for cell in before}
    assert products == {"32 fwd": 1, "32 fwdbwd": 0, "64 fwd": 0, "64 fwdbwd": 3}  # 3,000 rows are three of 1,000
    assert [out for _, out in before.values()] == [out for _, out in after.values()]


def fake(monkeypatch, fails_at=None):
    """Pairs that take no time: each block of the base 1 ms, of the head as much as its side's label says."""
    asked = []

    def pair(self, number, chosen, rounds, tell):
        asked.append((self.head.label, number))
        if len(asked) == fails_at:
            raise KeyboardInterrupt
        share = 1.05 if self.head.label.startswith("+5") else 1.0
        return Pair({i: [Block(1e-3, 1e-3 * share, True)] * rounds for i in chosen})

    monkeypatch.setattr(Driver, "pair", pair)
    monkeypatch.setattr(slowed, "seconds_by_rows", lambda: {1: 1e-6, 1000: 1e-3})
    return asked


def test_a_campaign_broken_off_goes_on_where_it_was(tmp_path, monkeypatch):
    path = tmp_path / "pairs.gz"
    fake(monkeypatch, fails_at=1 + pairs.SIZING + 6)
    with pytest.raises(KeyboardInterrupt):
        pairs.collect(path, CELLS, Protocol(), 3, 0, lambda _: None)
    kept = len(raw.read(path))
    assert kept == 1 + 5  # the table, and the pairs before the one under way
    asked = fake(monkeypatch)
    pairs.collect(path, CELLS, Protocol(), 3, 0, lambda _: None)
    lines = raw.read(path)
    assert [(line["kind"], line["number"]) for line in lines[1:]] == [(k, n) for n in range(3) for k in pairs.KINDS]
    assert len(asked) == 12 - 5
    pairs.collect(path, CELLS, Protocol(), 3, 0, lambda _: None)
    assert len(raw.read(path)) == len(lines)


def test_the_surplus_of_extra_work_is_taken_off_what_is_asked_for():
    cell = CELLS[0]
    table = {"rows": {"1": 0.0, "1001": 1e-3}, "cells": {cell.id: 10e-3}, "surplus": {cell.id: 0.1e-3}}
    rows = pairs.rows_of(table, {0: cell}, 0.05)
    assert rows == {key("softmax.naive", 32, "fwd"): 401}  # 5 % of 10 ms less 0.1 ms is 0.4 ms


def test_a_campaign_uses_the_driver_of_this_checkout_on_both_sides():
    with slowed.folder({}, "slow") as side:
        assert side.own_driver == here().own_driver == ""


def rounds(effect, spread, seed, count=16):
    order = random.Random(seed)
    return [log(1 + effect) + order.gauss(0, spread) for _ in range(count)]


def made(effect, spread, pairs_=20, cells=24, seed=0):
    return [{f"cell{c}": rounds(effect, spread, f"{seed}/{p}/{c}") for c in range(cells)} for p in range(pairs_)]


def test_identical_code_raises_no_alarm_and_a_slow_cell_is_found():
    same = made(0.0, 0.04)
    cell, comparison = alarms(same, Rules(), 20, 24)
    assert (cell.hits, comparison.hits, cell.draws, comparison.draws) == (0, 0, 480, 20)
    assert (cell.pairs, cell.independent, comparison.independent) == (20, 2 * 24, 2)
    found = detection(same, made(0.10, 0.04, seed=1), Rules(), 24)
    assert found.rate == 1
    assert detection(same, made(0.005, 0.04, seed=2), Rules(), 24).hits == 0  # below the threshold


def test_pairs_that_lean_one_way_are_alarms():
    """What the rules are there to prevent: every pair of the same code half of one per cent off would be nothing,
    every pair 10 % off must be seen as alarms by this very count."""
    cell, comparison = alarms(made(0.10, 0.02), Rules(), 5, 24)
    assert (cell.rate, comparison.rate) == (1, 1)


def test_a_night_has_cells_of_several_draws():
    _, night = alarms(made(0.0, 0.04, cells=4), Rules(), 3, 12)
    assert night.draws == 3
    cell, _ = alarms(made(0.0, 0.04, cells=4), Rules(), 3, 12)
    assert cell.draws == 3 * 12


def test_too_few_pairs_give_no_rate():
    cell, _ = alarms(made(0.0, 0.04, pairs_=8), Rules(), 3, 24)
    assert (cell.draws, cell.pairs) == (0, 8)
    assert detection(made(0, 0.04), made(0.1, 0.04, pairs_=8), Rules(), 24).draws == 0


def test_bounds_are_clopper_and_pearsons():
    assert Found(0, 1000, 40, 59).bound(upper=True) == pytest.approx(1 - 0.05 ** (1 / 59))
    assert Found(1000, 1000, 40, 59).bound(upper=False) == pytest.approx(0.05 ** (1 / 59))
    assert Found(0, 10, 40, 0).bound(upper=True) == 1


def test_classes_and_effects_are_read_off_the_rounds():
    assert [class_of(s) for s in (0.1, 0.1001, 0.2, 0.5)] == ["up to 10 %", "up to 20 %", "up to 20 %", "beyond 20 %"]
    line = {"kind": "5", "spread": 0.04, "failed": {}, "blocks": {"a": [[1.0, 1.05], [2.0, 2.1]]}}
    found = by_class([line, line | {"failed": {"a": "died"}}, {"kind": "table"}])
    assert list(found) == ["up to 10 %"] and len(found["up to 10 %"]["5"]) == 1
    assert effects(found["up to 10 %"]["5"])["a"] == pytest.approx(log(1.05))


def live(kind, target, verdicts):
    rows = [{"metric": "latency", "cell": cell, "verdict": said, "ratio": 1.04} for cell, said in verdicts.items()]
    return {"kind": kind, "number": 0, "target": target, "found": {"rows": rows, "seconds": 100.0}}


def test_live_comparisons_name_every_miss_and_every_alarm(tmp_path):
    for line in (
        live("5", "a", {"a": "worse", "b": "same"}),
        live("5", "b", {"a": "better", "b": "unclear"}),
        live("same", "", {"a": "same", "b": "same"}),
    ):
        raw.append(tmp_path / "live.gz", line)
    found = {row["kind"]: row for row in tables.evaluated(tmp_path, 24, lambda _: None)["live"]}
    assert found["5"]["missed"] == [["b", "unclear", 1.04]]
    assert found["5"]["alarms"] == ["a"]
    assert (found["5"]["seen"]["hits"], found["5"]["seen"]["draws"]) == (1, 2)
    assert (found["same"]["alarm"]["hits"], found["same"]["alarm"]["draws"]) == (0, 2)
    tables.write(tmp_path / "evaluated.json", tables.evaluated(tmp_path, 24, lambda _: None))
    text = tables.words(tables.read(tmp_path / "evaluated.json"))
    assert "| one cell +5 % | 2 | 2 | 1: 50.00 %" in text and "1 of 2: 50.00 %" in text


def test_the_page_shows_what_the_kept_evaluation_says():
    page = (slowed.SOURCE / "docs" / "trust.md").read_text("utf-8")
    for table in tables.words(tables.read(slowed.SOURCE / "docs" / "trust" / "evaluated.json")).split("\n\n"):
        assert table.strip() in page
