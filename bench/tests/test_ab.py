"""`attnbench ab` from end to end, on two commits of a copy of this house: what really changed is found."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from bench.tests.house import PACKAGES, ROOT

pytestmark = pytest.mark.slow
NAIVE = "softmax.naive/b1-h2-n64-d16-f32-full/fwd/cpu1"
FLASH = "softmax.sdpa_flash/b1-h2-n64-d16-f32-full/fwd/cpu1"
RUN = "    def run(call: Call) -> Output:\n"  # the first of the file is naive's
FEW = ("--pairs", "2", "--rounds", "8", "--fresh", "3")


def git(folder, *words):
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def change(path, old, new):
    text = path.read_text("utf-8")
    assert old in text, f"{path.name} has no {old!r} any more"
    path.write_text(text.replace(old, new, 1), "utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Two commits: as it is, and with a naive form that sleeps a millisecond in every call."""
    folder = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "--quiet")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "as it is")
    git(folder, "tag", "before")
    softmax = folder / "attention_impls" / "variants" / "scores" / "softmax.py"
    change(softmax, "from __future__ import annotations\n", "from __future__ import annotations\n\nimport time\n")
    change(softmax, RUN, f"{RUN}        time.sleep(1e-3)\n")
    git(folder, "commit", "--quiet", "-am", "slower")
    git(folder, "tag", "slower")
    return folder


def ab(tree, *words):
    around = {**os.environ, "PYTHONPATH": str(tree), "XDG_CACHE_HOME": str(tree / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-P", "-m", "bench.cli", "ab", *words], cwd=tree, env=around, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


def latency(text):
    return {row["cell"]: row for row in json.loads(text)["rows"] if row["metric"] == "latency"}


def test_a_kernel_that_became_slower_is_found_and_the_others_are_not(tree):
    done = ab(tree, "before", "slower", "--cell", NAIVE, "--cell", FLASH, *FEW, "--json", "--markdown", "comment.md")
    assert done.returncode == 1, done.stderr[-2000:]
    rows = latency(done.stdout)
    assert rows[NAIVE]["verdict"] == "worse"
    assert rows[NAIVE]["ratio"] > 2
    assert len(rows[NAIVE]["screened"]) == 2
    assert len(rows[NAIVE]["confirmed"]) == 3
    assert rows[FLASH]["verdict"] in ("same", "unclear")
    assert rows[FLASH]["confirmed"] == []
    assert (tree / "comment.md").read_text("utf-8").startswith("**Worse.**")
    kept = ab(tree, "--explain", NAIVE)
    assert kept.returncode == 1
    assert "3 fresh pairs agree" in kept.stdout
    assert subprocess.run(["git", "-C", str(tree), "worktree", "list"], capture_output=True, check=True).stdout.count(
        b"\n"
    ) == 1  # fmt: skip


def test_the_other_way_round_it_is_better_and_nothing_is_found(tree):
    done = ab(tree, "slower", "before", "--cell", NAIVE, *FEW, "--json", "--times-only")
    assert done.returncode == 0, done.stderr[-2000:]
    assert latency(done.stdout)[NAIVE]["verdict"] == "better"


def test_two_subjects_are_compared_on_the_settings_of_a_suite(tree):
    done = ab(tree, "softmax.naive", "dot.naive", "--cell", FLASH, *FEW, "--json")
    assert done.returncode in (0, 1), done.stderr[-2000:]
    assert set(latency(done.stdout)) == {NAIVE}


def test_one_subject_alone_and_a_revision_that_is_none_are_mistakes(tree):
    for words, said in ((("softmax.naive",), "another subject"), (("nonsense",), "git knows no commit 'nonsense'")):
        done = ab(tree, *words, "--cell", NAIVE)
        assert done.returncode == 2
        assert said in done.stderr


def test_a_question_that_no_answer_could_come_of_is_a_mistake(tree):
    """One worker stands on one number of threads; and six rounds of one sign are too few to find anything."""
    two = NAIVE.replace("cpu1", "cpu2")
    for words, said in (
        (("--cell", NAIVE, "--cell", two), "these are cpu1, cpu2"),
        (("--cell", NAIVE, "--cell", FLASH, "--pairs", "1", "--rounds", "6"), "it takes 7 rounds"),
    ):
        done = ab(tree, "before", *words)
        assert done.returncode == 2, done.stderr[-500:]
        assert said in done.stderr


def test_one_byte_and_one_operation_more_in_an_uncommitted_change_are_findings(tree):
    git(tree, "checkout", "--quiet", "before")
    softmax = tree / "attention_impls" / "variants" / "scores" / "softmax.py"
    change(softmax, RUN, f"{RUN}        kept = torch.zeros(1, dtype=torch.uint8)  # noqa: F841\n")
    done = ab(tree, "before", "--cell", NAIVE, "--cell", FLASH, *FEW, "--json")
    git(tree, "checkout", "--quiet", "--", ".")
    assert done.returncode == 1, done.stderr[-2000:]
    rows = {(row["cell"], row["metric"]): row for row in json.loads(done.stdout)["rows"]}
    assert rows[(NAIVE, "peak_forward")]["verdict"] == "worse"
    assert rows[(NAIVE, "peak_forward")]["head"] - rows[(NAIVE, "peak_forward")]["base"] == 1
    assert rows[(NAIVE, "dispatched_ops")]["head"] - rows[(NAIVE, "dispatched_ops")]["base"] >= 1
    assert rows[(FLASH, "peak_forward")]["verdict"] == "same"
