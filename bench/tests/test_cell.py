"""Cell ids: one function prints them, one reads them back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_impls.contract import DTYPES, Workload
from bench.cell import Cell, coordinates, from_data, parse_id, to_data
from bench.errors import UserError

SUBJECTS = ["softmax.naive", "softmax.naive+recompute+query_chunks:128", "sliding_window:window-256.banded+compiled"]
MASKS = ["full", "causal", "causal:bottom_right", "causal+padded:0.5", "packed:8", "dense:0.7"]


@st.composite
def cells(draw):
    kv_heads = draw(st.integers(1, 8))
    workload = Workload(
        batch=draw(st.integers(0, 9)),
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        q_len=draw(st.integers(1, 99999)),
        kv_len=draw(st.integers(1, 99999)),
        head_dim=draw(st.integers(1, 256)),
        value_dim=draw(st.integers(1, 256)),
        dtype=draw(st.sampled_from(sorted(DTYPES))),
        mask=draw(st.sampled_from(MASKS)),
        inputs=draw(st.sampled_from(["normal", "heavytail", "outliers"])),
    )
    device = draw(st.sampled_from(["cpu", "cuda"]))
    threads = draw(st.integers(1, 64)) if device == "cpu" else 1
    return Cell(draw(st.sampled_from(SUBJECTS)), workload, draw(st.sampled_from(["fwd", "fwdbwd"])), device, threads)


@given(cells())
def test_an_id_is_read_back_to_its_cell(cell):
    assert parse_id(cell.id) == cell
    assert from_data(to_data(cell)) == cell


@given(cells(), cells())
def test_ids_differ_where_cells_do_also_when_case_is_ignored(one, other):
    assert (one == other) == (one.id.lower() == other.id.lower())


@given(cells())
def test_ids_need_no_quoting_in_pytest_k_nor_in_a_shell(cell):
    assert set(cell.id) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.+:-/")


def test_the_written_form_is_the_one_in_the_docs():
    w = Workload(heads=8, kv_heads=2, q_len=1024, kv_len=4096, head_dim=64, value_dim=32, mask="causal", inputs="runs")
    cell = Cell("softmax.naive", w, "fwd", "cpu", 1)
    assert cell.id == "softmax.naive/b1-h8-g2-n1024-m4096-d64-e32-f32-causal-in.runs/fwd/cpu1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("softmax.naive", "subject/workload/direction/device"),
        ("softmax/b1-h8-n16-d8-f32-full/fwd/cpu1", "names no implementation"),
        ("softmax.naive/b1-h8-n16-d8-f33-full/fwd/cpu1", "no dtype 'f33'"),
        ("softmax.naive/b1-h8-n0-d8-f32-full/fwd/cpu1", "at least 1"),
        ("softmax.naive/b1-h8-g3-n4-d8-f32-full/fwd/cpu1", "multiple of kv_heads"),
        ("softmax.naive/b1-h8-n16-d8-f32-full/forward/cpu1", "no direction 'forward'"),
        ("softmax.naive/b1-h8-n16-d8-f32-full/fwd/cpu0", "no device 'cpu0'"),
        ("softmax.naive/h8-b1-n16-d8-f32-full/fwd/cpu1", "is no workload"),
    ],
)
def test_what_does_not_fit_is_named(text, said):
    with pytest.raises(UserError, match=said):
        parse_id(text)


def test_coordinates_are_flat_and_hold_every_axis():
    cell = parse_id("softmax.naive+recompute/b1-h8-n16-d8-f32-full/fwd/cpu1")
    flat = coordinates(cell, "softmax.sdpa_flash")
    assert flat["transforms"] == "recompute"
    assert flat["group"] == "b1-h8-n16-d8-f32-full/fwd/cpu1"
    assert set(cell.workload.to_dict()) <= set(flat)
    assert all(isinstance(value, str | int | float) for value in flat.values())
