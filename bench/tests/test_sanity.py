"""Alarms: numbers that cannot be, from readings made up by hand; ceilings of this machine held to a bare product."""

import time

import pytest
import torch

from bench import ceilings, supervisor
from bench.devices.cpu import DEVICE
from bench.plan import build
from bench.protocol import Protocol
from bench.record import Reading
from bench.sanity import Earlier, alarms
from bench.spec import Spec, Sweep, axes_of

MS = 1e-3


def readings(seconds=(1.0 * MS, 1.1 * MS, 1.2 * MS), rate=None):
    found = {"latency": Reading("s", tuple(seconds))}
    return found | ({"flops_rate": Reading("flop/s", (rate,))} if rate else {})


def test_a_rate_above_the_device_s_own_product_is_an_alarm_that_names_both():
    facts = {"ceiling_flops": 1e11}
    assert alarms(readings(rate=1.2e11), facts) == ()
    (said,) = alarms(readings(rate=1.3e11), facts)
    assert "130 Gflop/s" in said and "ceiling flops 100 Gflop/s" in said
    assert alarms(readings(rate=1.3e11), facts, every_pair=False) == ()  # a cheaper form than all pairs may do that


def test_a_data_sheet_is_exceeded_by_nothing():
    assert len(alarms(readings(rate=1.001e15), {"data_sheet_flops": 1e15})) == 1
    assert alarms(readings(rate=0.999e15), {"data_sheet_flops": 1e15}) == ()


def test_a_ceiling_that_was_not_measured_holds_nothing_back():
    assert alarms(readings(rate=1e18), {"ceiling_flops": "not measured: no such product"}) == ()
    assert alarms(readings(rate=1e18)) == ()


def test_a_step_below_any_call_and_a_clock_that_stands_still_are_alarms():
    assert "launch floor" in alarms(readings([1e-7, 1.1e-7, 1.2e-7]))[0]
    assert "the clock did not run" in alarms(readings([MS] * 5))[0]
    assert alarms(readings([MS] * 4)) == ()
    assert alarms({}) == ()


def cell(n, subject="softmax.naive", **more):
    return {"id": f"{subject}/{n}", "subject": subject, "q_len": n, "kv_len": n, "heads": 4, "group": f"g{n}"} | more


def test_time_that_does_not_grow_with_the_length_is_an_alarm_whichever_came_first():
    for order in ((256, 1024), (1024, 256)):
        earlier = Earlier()
        said = [earlier.stalls(cell(n), readings([3.0 * MS])) for n in order]
        assert said[0] == () and "3 ms at n = 1024, 3 ms at n = 256" in said[1][0]


@pytest.mark.parametrize(
    ("few", "many", "shorter", "longer"),
    [
        (256, 1024, 3.0 * MS, 3.4 * MS),  # it grew
        (256, 768, 3.0 * MS, 3.0 * MS),  # too little more work
        (256, 1024, 0.5 * MS, 0.5 * MS),  # what a call costs may hide a short step's work
    ],
)
def test_what_may_well_be_is_no_alarm(few, many, shorter, longer):
    earlier = Earlier()
    earlier.stalls(cell(few), readings([shorter]))
    assert earlier.stalls(cell(many), readings([longer])) == ()


def test_only_cells_that_differ_in_length_alone_are_held_against_each_other():
    earlier = Earlier()
    earlier.stalls(cell(256), readings([3.0 * MS]))
    assert earlier.stalls(cell(1024, heads=8), readings([3.0 * MS])) == ()
    assert earlier.stalls(cell(1024, subject="softmax.tiles"), readings([3.0 * MS])) == ()
    assert earlier.stalls(cell(1024) | {"kv_len": 2048}, readings([3.0 * MS])) == ()


def test_the_ceiling_is_the_rate_of_a_large_product_and_of_a_large_copy():
    torch.set_num_threads(1)
    found = ceilings.measured(DEVICE, "f32")
    a = torch.ones(1024, 1024)
    taken = []
    for _ in range(5):
        start = time.monotonic()
        a @ a
        taken.append(time.monotonic() - start)
    bare = 2 * 1024**3 / min(taken)
    assert bare / 4 < found["ceiling_flops"] < bare * 4
    assert 1e9 < found["ceiling_bandwidth"] < 1e12
    assert "data_sheet_flops" not in found


def test_a_product_that_the_device_cannot_do_is_a_fact_with_its_reason(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError('"addmm_impl_cpu_" not implemented\nand more')

    monkeypatch.setattr(torch, "mm", refuse)
    found = ceilings.measured(DEVICE, "f16")
    assert found["ceiling_flops"] == 'not measured: "addmm_impl_cpu_" not implemented'
    assert found["ceiling_bandwidth"] > 0


@pytest.mark.parametrize(
    ("gpu", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA A100-SXM4-40GB", "tf32", 156e12),
        ("NVIDIA A10", "f32", 31.2e12),
        ("NVIDIA L40S", "f16", 362e12),
        ("NVIDIA L4", "f16", 121e12),
    ],
)
def test_data_sheets_are_found_by_the_driver_s_name(gpu, dtype, peak):
    assert ceilings.data_sheet(gpu)[dtype] == peak


def test_an_unknown_chip_has_no_data_sheet():
    assert ceilings.data_sheet("Somebody's GPU") == {} == ceilings.data_sheet("")


def test_ceilings_are_measured_once_a_run_for_each_dtype_and_stand_on_every_record():
    axes = axes_of({"q_len": [32, 64], "heads": 1, "head_dim": 16, "dtype": ["f32", "f64"]})
    spec = Spec("ceilings", (Sweep(("softmax.naive",), axes),), ("softmax.naive",))
    protocol = Protocol(group_budget_s=0.1, warm_s=0.01, min_rounds=3)
    records = [r for group in supervisor.run(build(spec, absent_devices={}), protocol) for r in group]
    found = {(r.cell["q_len"], r.cell["dtype"]): r.facts["ceiling_flops"] for r in records}
    assert len(found) == 4
    assert found[32, "f32"] == found[64, "f32"] != found[32, "f64"] == found[64, "f64"]
