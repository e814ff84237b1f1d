"""From a spec to groups: every cell of the crossing is somewhere, with a sentence where it will not be run."""

import pytest

from attention_impls import catalogue
from bench import budget
from bench.child import require_platform
from bench.devices import absent
from bench.errors import CannotDo, UserError
from bench.plan import build, without
from bench.protocol import Protocol
from bench.spec import Spec, Sweep, axes_of, load, suite_names

REFERENCE = ("softmax.sdpa_flash", "softmax.naive")


def spec(*subjects, keep="", reference=REFERENCE, cells=(), **axes):
    return Spec("s", (Sweep(subjects, axes_of(axes)),), reference, keep=keep, cells=cells)


def test_contenders_of_one_workload_share_a_group_and_its_reference():
    plan = build(spec("softmax.naive", "softmax.sdpa_flash", q_len=[16, 32], direction=["fwd", "fwdbwd"]))
    assert len(plan.groups) == 4
    assert all(g.reference == "softmax.sdpa_flash" and len(g.measured) == 2 for g in plan.groups)


def test_the_reference_is_measured_as_a_companion_where_it_was_deselected():
    plan = build(spec("softmax.naive", "softmax.sdpa_flash", q_len=16, keep="naive"))
    (group,) = plan.groups
    assert [(p.cell.subject, p.companion) for p in group.cells] == [
        ("softmax.sdpa_flash", True),
        ("softmax.naive", False),
    ]


def test_the_next_reference_is_taken_where_the_first_cannot_and_said():
    (group,) = build(spec("softmax.naive", q_len=16, head_dim=8, value_dim=4)).groups
    assert group.reference == "softmax.naive"


def test_a_group_of_layers_is_held_against_a_layer_whatever_is_deselected():
    layer = "softmax.sdpa_flash+in:multi_head"
    listed = ("softmax.sdpa_flash", layer)
    for keep in ("", "naive"):
        found = build(spec("softmax.naive+in:multi_head", layer, reference=listed, q_len=16, heads=2, keep=keep))
        assert found.groups[0].reference == layer


def test_what_cannot_be_done_stays_with_its_sentence():
    plan = build(spec("softmax.*", q_len=16), absent_devices=absent())
    refused = {p.cell.subject: (p.outcome, p.note) for p in plan.cells if p.outcome}
    assert refused["softmax.sdpa_cudnn"] == ("unsupported", "does not run on cpu; runs on cuda")
    elsewhere = build(spec("softmax.naive", "softmax.sdpa_flash", q_len=16, device=["cpu", "cuda"]),
                      absent_devices={"cuda": "no GPU here"})  # fmt: skip
    assert [(p.outcome, p.note) for p in elsewhere.groups[1].cells] == [("absent", "no GPU here")] * 2


def test_shapes_that_make_no_workload_are_left_out_with_the_reason():
    plan = build(spec("softmax.naive", q_len=16, heads=[4, 6], kv_heads=4))
    assert len(plan.groups) == 1
    assert "multiple of kv_heads" in plan.left_out[0]["why"]


def test_a_mask_that_the_shape_cannot_have_is_unsupported():
    plan = build(spec("softmax.naive", q_len=8, kv_len=[8, 16], mask="packed:2"))
    assert ["packed" in p.note for p in plan.groups[1].cells] == [True] * len(plan.groups[1].cells)
    assert all(p.outcome == "unsupported" for p in plan.groups[1].cells)


def test_a_plan_with_nothing_left_is_the_users_mistake():
    with pytest.raises(UserError, match="keeps no cell"):
        build(spec("softmax.naive", q_len=16, keep="no_such_word"))
    with pytest.raises(UserError, match="does not run on cpu"):
        build(spec("softmax.sdpa_cudnn", q_len=16, reference=()))


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("sofmax.naive", "did you mean 'softmax'"),
        ("softmax.naiv", "did you mean 'naive'"),
        ("softmax.naive+query_chunk:8", "did you mean 'query_chunks'"),
        ("softmax", "names no implementation"),
        ("sliding_window:windo-8.banded", "did you mean 'window'"),
        ("softmax.naive+in:multihead", "did you mean 'multi_head'"),
    ],
)
def test_misspelt_subjects_get_the_nearest(subject, said):
    with pytest.raises(UserError, match=said):
        build(spec(subject, q_len=16))


def test_one_thing_has_one_name_defaults_left_out():
    default = catalogue.entries()["sliding_window"].defaults["window"]
    plan = build(spec(f"sliding_window:window-{default}.banded", "sliding_window.banded", q_len=16, mask="causal"))
    assert [p.cell.subject for p in plan.groups[0].measured if not p.companion] == ["sliding_window.banded"]


def test_exact_cells_may_be_asked_for():
    cell = "softmax.naive/b1-h2-n16-d8-f32-causal/fwd/cpu1"
    plan = build(spec("softmax.tiles", cells=(cell,)))
    assert [p.cell.id for p in plan.cells if not p.companion] == [cell]


def test_groups_that_are_done_are_left_out_of_what_a_resumed_run_does():
    plan = build(spec("softmax.naive", "softmax.sdpa_flash", q_len=[16, 32]))
    done = [p.cell.id for p in plan.groups[0].cells]
    assert without(plan, done).groups == plan.groups[1:]
    assert without(plan, done[:1]).groups == plan.groups


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_plans_within_its_budget(name):
    suite = load(name)
    plan = build(suite, absent_devices={} if name.startswith("gpu") else absent())
    protocol = Protocol(group_budget_s=suite.group_budget_s or Protocol().group_budget_s)
    assert budget.total(plan, protocol).seconds <= suite.budget_s


def test_the_quick_suite_is_small():
    plan = build(load("quick"), absent_devices=absent())
    assert len(plan.groups) <= 12
    assert max(len(g.cells) for g in plan.groups) <= 6
    assert max(p.cell.workload.q_len for p in plan.cells) <= 1024
    assert sum("compiled" in p.cell.subject or ".flex" in p.cell.subject for p in plan.cells) <= 2


def test_a_budget_first_shortens_groups_then_drops_the_dearest_and_says_so():
    plan = build(spec("softmax.naive", "softmax.sdpa_flash", q_len=[64, 4096]))
    long = Protocol(group_budget_s=60.0)
    whole, shorter = budget.fit(plan, long, 100.0)
    assert len(whole.groups) == 2
    assert shorter.group_budget_s < 60.0
    assert budget.total(whole, shorter).seconds <= 100.0
    fewer, _ = budget.fit(plan, long, 12.0)
    assert [g.cells[0].cell.workload.q_len for g in fewer.groups] == [64]
    assert "does not fit" in fewer.left_out[0]["why"]
    with pytest.raises(UserError, match="the cheapest takes"):
        budget.fit(plan, long, 1.0)


def test_without_a_compiler_compiled_is_absent_with_the_command_that_helps(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    plan = build(spec("softmax.naive+compiled", "softmax.flex", "softmax.naive", q_len=16))
    absentees = {p.cell.subject: p.note for p in plan.cells if p.outcome == "absent"}
    assert set(absentees) == {"softmax.naive+compiled", "softmax.flex"}
    assert all("apt-get install g++" in note for note in absentees.values())


def test_on_windows_measuring_is_refused_with_a_sentence():
    with pytest.raises(CannotDo, match="macOS and read the run here") as refused:
        require_platform("win32")
    assert refused.value.exit_code == 3
    require_platform("linux")
    require_platform("darwin")
