"""The list of oracles: every test it names is there, every variant stands in it, no outside library is left out."""

import ast
import sys
from functools import cache

import pytest

from attention_impls import catalogue
from bench.oracles import Oracle, held_against, oracles
from bench.tests.house import ROOT

TESTS = ROOT / "attention_impls" / "tests"
OURS = {"attention_impls", "bench", "torch", "numpy", "pytest", "hypothesis"} | set(sys.stdlib_module_names)
# Files that load outside code and hold no variant to it.
NO_ORACLE = {"test_peers.py": "faults of peers, and that they stay away until used"}


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def loads_outside_code(node):
    """Whether it imports a library that is neither ours nor what everything here is written in, or loads a file."""
    for part in ast.walk(node):
        if isinstance(part, ast.Import) and any(name.name.split(".")[0] not in OURS for name in part.names):
            return True
        if isinstance(part, ast.ImportFrom) and (part.module or "").split(".")[0] not in OURS:
            return True
        called = ast.unparse(part.func).rpartition(".")[2] if isinstance(part, ast.Call) else ""
        if called == "spec_from_file_location":
            return True
        if called == "importorskip" and part.args and str(ast.literal_eval(part.args[0])).split(".")[0] not in OURS:
            return True
    return False


@cache
def loaders():
    """Functions of the files that tests share, by name, which load outside code."""
    shared = [path for path in TESTS.glob("*.py") if not path.name.startswith("test_")]
    trees = [ast.parse(path.read_text("utf-8")) for path in shared]
    return {f.name for tree in trees for f in functions(tree) if loads_outside_code(f)}


def uses_outside_code(text):
    """Whether a test file loads outside code itself, or calls what does."""
    tree = ast.parse(text)
    calls = {ast.unparse(n.func).rpartition(".")[2] for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return loads_outside_code(tree) or bool(calls & loaders())


def test_every_test_that_is_listed_is_in_the_tree():
    for path, _, name in {oracle.test.partition("::") for oracle in oracles()}:
        assert (ROOT / path).is_file(), path
        assert name in {f.name for f in functions(ast.parse((ROOT / path).read_text("utf-8")))}, f"{path}: no {name}"


def test_every_variant_is_listed_and_nothing_else(monkeypatch):
    monkeypatch.setattr(catalogue, "_installed_plugins", list)
    monkeypatch.setattr(catalogue, "_loaded", {})
    catalogue.entries.cache_clear()
    try:
        assert {oracle.variant for oracle in oracles()} == set(catalogue.entries()), "edit attention_impls/oracles.toml"
    finally:
        monkeypatch.undo()
        catalogue.entries.cache_clear()


def test_every_test_file_that_uses_outside_code_is_listed():
    listed = {oracle.test.partition("::")[0].rpartition("/")[2] for oracle in oracles() if oracle.library}
    using = {path.name for path in TESTS.glob("test_*.py") if uses_outside_code(path.read_text("utf-8"))}
    assert using - listed - set(NO_ORACLE) == set()
    assert {"test_entmax.py", "test_gla.py", "test_softcap.py", "test_onnx.py", "test_abc.py"} <= using


@pytest.mark.parametrize(
    "text",
    [
        "import entmax",
        "def test():\n    from x_transformers import y",
        "import pytest\ndef test():\n    pytest.importorskip('a.b')",
        "from attention_impls.tests import recurrent_steps as steps\ndef test():\n    steps.fla_naive('gla/naive')",
        "from attention_impls.tests.score_loops import x_transformers\ndef test():\n    x_transformers()",
    ],
)
def test_outside_code_is_seen_in_every_way_that_it_is_loaded(text):
    assert uses_outside_code(text)


def test_what_all_tests_are_written_in_is_no_outside_code():
    assert not uses_outside_code("import torch, numpy as np, pytest\nfrom attention_impls.tests.faults import x")


def test_the_most_independent_oracle_stands_first_and_a_library_once():
    assert held_against("gla") == "onnxruntime (1), onnx reference (2), fla (3)"
    assert held_against("agent") == "own loop (5)"


@pytest.mark.parametrize(("level", "library"), [(0, "x"), (6, ""), (5, "x"), (3, "")])
def test_a_level_says_whether_there_is_a_library(level, library):
    with pytest.raises(ValueError, match=r"oracle of linear: level \d with library"):
        Oracle("linear", level, "a.py::test", library)
