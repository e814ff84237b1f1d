"""CONTRIBUTING.md keeps its word: each example, written into its folder as it stands on the page, is found and works
with no other edit, and is gone when its file is."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.store import read_run
from bench.tests import contributed, house
from bench.tests.house import ROOT

pytestmark = pytest.mark.slow  # it measures a group: tens of seconds
EXAMPLE = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
EXAMPLES = dict(EXAMPLE.findall(PAGE))


def _process(tree, *words):
    """One child that sees the copy and nothing of the real tree; what it printed."""
    around = {**os.environ, "PYTHONPATH": str(tree), "XDG_CACHE_HOME": str(tree / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=around, capture_output=True, text=True, check=False, timeout=240
    )
    if done.returncode:
        pytest.fail(done.stderr[-1500:], pytrace=False)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of both packages, tests included."""
    folder = tmp_path_factory.mktemp("tree")
    for package in house.PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def before(tree):
    return _process(tree, "-m", "bench.tests.contributed", "found")


@pytest.fixture(scope="module")
def used(tree, before):
    """What came of using the examples; their files are there while this is found out, and no longer."""
    for path, text in EXAMPLES.items():
        assert not (tree / path).exists(), f"{path} is there already: give the example in CONTRIBUTING.md another name"
        (tree / path).write_text(text, "utf-8")
    yield _process(tree, "-m", "bench.tests.contributed", "used")
    for path in EXAMPLES:
        (tree / path).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def records(tree, used):
    run = read_run(tree / used["run"]["path"])
    return {record.cell["subject"]: record for record in run.records}


def test_the_page_has_an_example_for_every_folder_that_is_added_to():
    folders = {str(Path(path).parent) for path in EXAMPLES}
    asked = {*house.NOUNS, "bench/suites"} - {"bench/commands", "attention_impls/peers"}  # the page says what these are
    assert all(any(folder.startswith(noun) for folder in folders) for noun in asked), folders


def test_the_page_names_every_folder_that_is_added_to():
    assert [noun for noun in (*house.NOUNS, "bench/suites") if f"`{noun}/<" not in PAGE] == []


def test_the_copy_is_used_and_not_the_tree_itself(tree, before):
    assert Path(before["at"]) == tree


def test_each_example_is_found_by_its_folder_alone(before, used):
    new = {kind: [n for n in names if n not in before[kind]] for kind, names in used["found"].items() if kind != "at"}
    assert new == {
        "implementations": ["softmax.my_late_division", "my_cosine.naive", "my_cosine.sdpa_flash"],
        "transforms": ["my_sequences"],
        "layers": ["my_pre_norm"],
        "metrics": ["my_intensity"],
        "suites": ["my_decoding"],
        "sections": ["Back-ends that ran"],
        "devices": ["xpu"],
    }


def test_each_entrant_passes_conformance(used):
    assert set(used["asked"]) == set(contributed.ENTRANTS)
    assert all(asked > 15 for asked in used["asked"].values()), used["asked"]


def test_each_entrant_is_measured_and_right(records):
    assert {name: records[name].outcome for name in contributed.MEASURED} == dict.fromkeys(contributed.MEASURED, "ok")
    assert all(records[name].readings["latency"].values for name in contributed.MEASURED)


def test_the_transform_proves_that_it_happened(records):
    assert re.match(r"[1-9]\d* more joins", records["softmax.naive+my_sequences"].facts["applied.my_sequences"])


def test_the_metric_is_recorded_and_is_what_its_text_says(records):
    for name in contributed.ENTRANTS:
        readings = records[name].readings
        asked = 2 * (2 * 2 * 33 * 33) * (8 + 8)  # 2 · pairs · (D + E), of 2 sequences and 2 heads
        assert readings["my_intensity"].values == (pytest.approx(asked / readings["peak_forward"].values[0]),)


def test_the_suite_plans_within_its_budget(used):
    assert len(used["plan"]["cells"]) == 2 * 2 * 3 and used["plan"]["refused"] == []
    assert used["plan"]["seconds"] <= 120


def test_the_section_stands_in_the_report(tree, used, records):
    page = (tree / used["report"]["index"]).read_text("utf-8")
    assert "Back-ends that ran" in page and "back-end seen" in page
    assert all(record.backend in page for record in records.values())


def test_the_device_says_why_it_is_not_here(used):
    code, _, told = used["device"]
    assert code == 2 and "no XPU is visible to torch" in told


def test_nothing_of_it_is_left_when_the_files_are_gone(tree, before, used, records):
    for path in EXAMPLES:
        (tree / path).unlink()
    assert _process(tree, "-m", "bench.tests.contributed", "found") == before


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.endswith(".py")])
def test_each_example_is_as_clean_as_the_house_wants_it(path):
    ruff = [sys.executable, "-m", "ruff"]
    if subprocess.run([*ruff, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("ruff is not installed")
    settings = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", "--stdin-filename", path, "-"]
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *command, *settings], input=EXAMPLES[path], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout
