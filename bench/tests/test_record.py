"""Plain data out and back, and what a stranger's line may not be."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record import Key, MalformedRecord, Reading, Record, RunEnd, from_json, to_json
from bench.tests.data.make_runs import after, before, header, record


def stored(line: Any) -> Any:
    return json.loads(json.dumps(to_json(line), allow_nan=False))


@pytest.mark.parametrize("line", [*before(), *after(), RunEnd(1.5, 3)], ids=lambda line: type(line).__name__)
def test_every_line_comes_back_as_it_was(line: Any) -> None:
    assert from_json(stored(line)) == line


@given(st.lists(st.floats(allow_nan=False) | st.integers(-(2**63), 2**63), max_size=20))
def test_numbers_come_back_to_the_last_bit_with_their_kind(values: list[float]) -> None:
    reading = Reading("s", tuple(values))
    back = from_json(stored(Record(Key("a", "p"), {}, "ok", {"latency": reading})))
    assert isinstance(back, Record)
    assert [(type(v), v) for v in back.readings["latency"].values] == [(type(v), v) for v in values]


def test_numbers_that_json_has_not_are_stored_as_texts() -> None:
    line = to_json(Record(Key("a", "p"), {}, "ok", {"error": Reading("1", (math.nan, math.inf, -math.inf))}))
    assert line["readings"]["error"]["values"] == ["nan", "inf", "-inf"]
    back = from_json(stored(Record(Key("a", "p"), {}, "ok", {"error": Reading("1", (math.nan, -math.inf))})))
    assert isinstance(back, Record)
    assert math.isnan(back.readings["error"].values[0])
    assert back.readings["error"].values[1] == -math.inf


def test_a_size_is_never_a_dump_of_what_was_measured() -> None:
    assert len(json.dumps(to_json(record("softmax.naive", 128)))) < 4000


BAD_RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "an outcome nobody knows": ({"outcome": "splendid"}, "splendid"),
    "a cell that nests": ({"cell": {"a": {"b": 1}}}, "cell.a"),
    "a value that is a text": ({"readings": {"x": {"unit": "s", "values": ["fast"]}}}, "not a number"),
    "a value that is true": ({"readings": {"x": {"unit": "s", "values": [True]}}}, "not a number"),
    "columns of unequal length": ({"readings": {"x": {"unit": "s", "values": [1.0], "round": [1, 2]}}}, "2 in 'round'"),
    "a column that is a number": ({"readings": {"x": {"unit": "s", "values": [1.0], "round": 5}}}, "'round'"),
    "a round that is a half": ({"readings": {"x": {"unit": "s", "values": [1.0], "round": [0.5]}}}, "'round'"),
    "a whole number beyond every float": ({"readings": {"x": {"unit": "B", "values": [10**400]}}}, "64 bits"),
    "a fact beyond every float": ({"facts": {"rounds": 10**400}}, "64 bits"),
    "a time beyond every float": ({"at": 10**400}, "64 bits"),
    "a reading without unit": ({"readings": {"x": {"values": []}}}, "unit"),
    "alarms that are no texts": ({"alarms": [1]}, "alarms"),
    "a key that is a text": ({"key": "a"}, "key"),
    "a companion that is a number": ({"companion": 1}, "companion"),
}


@pytest.mark.parametrize(("change", "said"), BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_a_malformed_record_is_refused_by_the_name_of_its_field(change: dict[str, Any], said: str) -> None:
    line = stored(record("softmax.naive", 128)) | change
    with pytest.raises(MalformedRecord, match=said):
        from_json(line)


BAD_HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "a later schema": ({"schema": 99}, "schema 99"),
    "schema zero": ({"schema": 0}, "schema 0"),
    "schema true": ({"schema": True}, "schema"),
    "metrics that are no tables": ({"metrics": {"latency": "s"}}, "metrics"),
    "cells that are no texts": ({"plan": {"cells": [1]}}, "plan.cells"),
    "a machine that nests": ({"machine": {"id": ["a"]}}, "machine.id"),
}


@pytest.mark.parametrize(("change", "said"), BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_malformed_header_is_refused_by_the_name_of_its_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(MalformedRecord, match=said):
        from_json(stored(header([])) | change)


@pytest.mark.parametrize("line", [None, [], 1, "x", {}, {"kind": "poem"}, {"kind": ["header"]}, {"kind": "record"}])
def test_what_is_no_line_at_all_is_refused(line: Any) -> None:
    with pytest.raises(MalformedRecord):
        from_json(line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({*stored(record("softmax.naive", 128)), *stored(header([]))})


@given(st.sampled_from([record("softmax.naive", 128), header([])]), st.sampled_from(FIELDS), json_values)
def test_whatever_stands_in_a_field_it_is_taken_or_refused_but_never_a_crash(line: Any, name: str, value: Any) -> None:
    try:
        from_json(stored(line) | {name: value})
    except MalformedRecord as error:
        assert str(error)
