"""The workflows: actions by commit, no more permissions than needed, and commands that are really there."""

import re

import pytest

from bench.tests.house import ROOT

FOLDER = ROOT / ".github" / "workflows"
NAMES = sorted(path.name for path in FOLDER.glob("*.yml"))
USES = re.compile(r"uses:\s*(\S+)(.*)")
WRITES = {"pr-comment.yml": {"pull-requests"}, "nightly.yml": {"pages", "id-token", "issues"}}


def text(name):
    return (FOLDER / name).read_text("utf-8")


def test_the_four_are_there():
    assert NAMES == ["ci.yml", "nightly.yml", "pr-comment.yml", "pr.yml"]


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_named_by_commit_with_their_version_beside(name):
    used = USES.findall(text(name))
    assert used
    for action, comment in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


@pytest.mark.parametrize("name", NAMES)
def test_nothing_may_write_but_what_says_so(name):
    assert re.search(r"^permissions:\n", text(name), re.MULTILINE), "permissions are given, not inherited"
    assert set(re.findall(r"^\s+([\w-]+): write", text(name), re.MULTILINE)) == WRITES.get(name, set())
    assert "write-all" not in text(name)


@pytest.mark.parametrize("name", NAMES)
def test_no_strangers_text_becomes_a_command(name):
    """${{ }} is filled in before the shell reads: titles, branches and names go through `env` only."""
    for block in re.findall(r"run: (?:\|\n((?:\s{10,}.*\n)+)|(.*)\n)", text(name)):
        assert "${{" not in "".join(block), block


def test_the_one_that_comments_runs_no_code_of_the_pull_request():
    said = text("pr-comment.yml")
    assert "ref: ${{ github.event.repository.default_branch }}" in said
    assert "pull_request_target" not in "".join(map(text, NAMES))
    assert "-size -65536k" in said
    assert "bench.cli ab --of" in said
    assert "permissions:\n  contents: read\n" in text("pr.yml")


@pytest.mark.parametrize("name", NAMES)
def test_tox_environments_and_scripts_that_are_run_are_there(name):
    known = set(re.findall(r"^\[testenv:(\w+)\]", (ROOT / "tox.ini").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"tox run -e (\w+)", text(name))) <= known
    for script in re.findall(r"bash (\S+)", text(name)):
        assert (ROOT / script).is_file()
