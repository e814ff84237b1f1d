"""`attnbench new`: every file it writes works unchanged, is found by its folder, and is never written over another."""

import os
import re
import subprocess
import sys

import pytest
import torch

import attention_impls.layers
import attention_impls.transforms
import attention_impls.variants.scores
import bench.metrics
from attention_impls import catalogue, layer_subject
from attention_impls.contract import Workload
from attention_impls.tests import conformance_plan as planning
from attention_impls.tests.conformance_cases import CASES, CHAINED
from bench import cli, metric
from bench.commands import new
from bench.record import Reading
from bench.tests.house import ROOT

PACKAGES = {
    "variant": attention_impls.variants.scores,
    "transform": attention_impls.transforms,
    "layer": attention_impls.layers,
    "metric": bench.metrics,
}
CACHES = (catalogue.entries, catalogue.transforms, catalogue.layers, metric.all_metrics)


@pytest.fixture
def written(tmp_path, monkeypatch, capsys):
    """Writes a file of a kind and puts its folder into the package where such files are found; takes the kind."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def write(kind):
        assert cli.run(["new", kind, "mine_too", "--dir", str(tmp_path)]) == 0
        assert str(tmp_path) in capsys.readouterr().out
        package = PACKAGES[kind]
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        for cache in CACHES:
            cache.cache_clear()
        return "mine_too"

    yield write
    torch.set_num_threads(threads)
    monkeypatch.undo()
    for cache in CACHES:
        cache.cache_clear()
    for name in [name for name in sys.modules if name.endswith(".mine_too")]:
        del sys.modules[name]


def conform(names, checks, cases):
    """Asks conformance of entrants by name; returns how many checks were asked of each."""
    made = planning.Plan()
    for name in names:
        planning.ask(made, planning.entrant(name), checks, cases)
    for asked in made.asked:
        asked.check.function(asked.entrant, CASES[asked.case])
    return [sum(asked.entrant.name == name for asked in made.asked) for name in names]


def test_a_new_variant_passes_conformance_unchanged(written):
    name = written("variant")
    assert name in catalogue.entries()
    counts = conform([f"{name}.naive"], planning.CHECKS, planning.EVERY)
    assert counts[0] > 30


def test_a_new_variant_works_under_transforms(written):
    name = written("variant")
    chains = [f"{name}.naive+query_chunks:8", f"{name}.naive+key_chunks:8", f"{name}.naive+recompute"]
    assert all(conform(chains, (planning.OUTPUT, planning.GRADIENTS), CHAINED))


def test_a_new_transform_passes_conformance_unchanged(written):
    name = written("transform")
    chains = [f"softmax.naive+{name}", f"softmax.naive+query_chunks:8+{name}", f"softmax.naive+{name}+recompute"]
    assert all(conform(chains, (planning.OUTPUT, planning.GRADIENTS), CHAINED))


def test_a_new_transform_proves_that_it_happened(written):
    from attention_impls import inputs
    from attention_impls.evidence import gather

    subject = catalogue.find(f"softmax.naive+{written('transform')}")
    call = inputs.draw(
        subject.variant, Workload(batch=3, heads=2, kv_heads=2, q_len=5, kv_len=5, head_dim=4, value_dim=4)
    )
    seen, bare = (gather(who.prepare(call, False), call) for who in (subject.inner, subject.bare))
    applied = subject.transforms[0][0].applied
    assert applied(seen, bare).ok
    assert not applied(bare, bare).ok


@pytest.mark.parametrize(("dtype", "limit"), [("f64", 1e-10), ("f32", 1e-4)])
def test_a_new_layer_is_its_own_reference_with_any_implementation(written, dtype, limit):
    subject = catalogue.find(f"softmax.sdpa_flash+in:{written('layer')}")
    workload = Workload(
        batch=2, heads=4, kv_heads=2, q_len=33, kv_len=33, head_dim=8, value_dim=8, dtype=dtype, mask="causal"
    )
    assert layer_subject.refuses(subject, workload, "fwdbwd", "cpu") is None
    made, x = layer_subject.prepare(subject, workload), layer_subject.draw(workload).requires_grad_()
    out = made.run(x)
    upstream = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    leaves = made.leaves(x)
    gradients = dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), upstream), strict=True))
    right = layer_subject.reference(subject, workload, x, upstream)
    for name, distance in layer_subject.errors(layer_subject.LayerAnswer(out.detach(), gradients), right).items():
        assert distance.worst_row < limit, name
    assert "dg" in layer_subject.errors(layer_subject.LayerAnswer(out.detach(), gradients), right)


def test_a_new_metric_is_derived_from_the_others(written):
    name = written("metric")
    made = metric.all_metrics()[name]
    cell = {"batch": 2, "q_len": 5}
    assert made.derive(cell, {"peak_forward": Reading("B", (1000,))}) == Reading("B", (100.0,))
    assert made.derive(cell, {}) is None
    assert made.info.better == "lower"


def test_a_new_suite_makes_a_plan(tmp_path, capsys):
    assert cli.run(["new", "suite", "mine_too", "--dir", str(tmp_path)]) == 0
    capsys.readouterr()
    assert cli.run(["plan", "--suite", str(tmp_path / "mine_too.toml")]) == 0
    told = capsys.readouterr().out
    assert "softmax.naive+query_chunks:128" in told and "fwdbwd" in told


@pytest.mark.parametrize("kind", list(new.KINDS))
def test_a_file_that_is_there_is_left_as_it_is(tmp_path, capsys, kind):
    target = tmp_path / f"mine_too{new.KINDS[kind].suffix}"
    target.write_text("precious", "utf-8")
    assert cli.run(["new", kind, "mine_too", "--dir", str(tmp_path)]) == 2
    assert target.read_text("utf-8") == "precious"
    assert "there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "name"), [("variant", "softmax"), ("transform", "recompute"), ("metric", "latency"), ("suite", "quick")]
)
def test_a_name_that_is_taken_is_refused(tmp_path, capsys, kind, name):
    assert cli.run(["new", kind, name, "--dir", str(tmp_path)]) == 2
    assert f"attnbench show {name}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [("My-Thing", "try my_thing"), ("2nd", "try nd"), ("../x", "try x"), ("ä", "no name"), ("a.b", "try a_b")],
)
def test_a_name_outside_the_grammar_is_told_a_near_one(tmp_path, capsys, name, hint):
    assert cli.run(["new", "variant", "--dir", str(tmp_path), "--", name]) == 2
    assert hint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="a file where a folder should be is told in other words there")
def test_a_folder_that_cannot_be_written_is_said_with_what_helps(tmp_path, capsys):
    (tmp_path / "file").write_text("", "utf-8")
    code = cli.run(["new", "suite", "mine_too", "--dir", str(tmp_path / "file" / "below")])
    told = capsys.readouterr().err
    assert code == 3 and "--dir" in told


@pytest.mark.parametrize("kind", list(new.KINDS))
def test_the_folder_of_each_kind_is_there_and_its_next_commands_exist(kind):
    assert (ROOT / new.KINDS[kind].folder).is_dir()
    words = {line.split()[1] for line in new.KINDS[kind].then if line.startswith("attnbench")}
    assert words <= {path.stem for path in (ROOT / "bench" / "commands").glob("*.py")}


@pytest.mark.parametrize("kind", [kind for kind in new.KINDS if new.KINDS[kind].suffix == ".py"])
def test_a_template_is_as_clean_as_the_house_wants_it(tmp_path, kind):
    target = tmp_path / "mine_too.py"
    target.write_text(new.text_of(kind, "mine_too"), "utf-8")
    ruff = [sys.executable, "-m", "ruff"]
    if subprocess.run([*ruff, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("ruff is not installed")
    settings = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    for command in (["check", *settings], ["format", "--check", *settings]):
        done = subprocess.run([*ruff, *command, str(target)], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout


def test_every_template_goes_with_the_package():
    import tomllib

    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"][
        "bench"
    ]
    carried = {path for pattern in patterns for path in (ROOT / "bench").glob(pattern)}
    assert set(new.TEMPLATES.iterdir()) <= carried
    assert {re.sub(r"\..*", "", path.name) for path in new.TEMPLATES.iterdir()} == set(new.KINDS)
