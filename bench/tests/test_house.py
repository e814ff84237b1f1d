"""The house: who may import whom, which kind of line lives in which room, how long things are, and what the
documents tell people to type. Every rule is shown a planted offence that it must catch."""

import ast
import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.tests import house, readme
from bench.tests.house import ROOT

# What is longer than the house allows, with the reason. Held exactly: a file that became short must leave the list.
LONG_FILES = {
    "attention_impls/contract.py": "the words of the contract are read together",
    "attention_impls/catalogue.py": "walking, naming and building a subject share one table of entries",
    "attention_impls/mask.py": "every view of one mask",
    "bench/record.py": "each stored type beside the reader that checks it",
}
LONG_FUNCTIONS: dict[str, str] = {}

# rule -> (a file that it looks into, an offending line)
MUTANTS = {
    house.cuda_only_in_devices: [
        ("bench/measure.py", "import torch\ntorch.cuda.synchronize()"),
        ("attention_impls/variants/scores/x.py", "from torch import cuda"),
        ("bench/step.py", "import torch.cuda"),
    ],
    house.step_clocks_only_in_devices: [
        ("bench/measure.py", "import time\nt = time.perf_counter()"),
        ("bench/timing.py", "from time import process_time_ns"),
        ("bench/timing.py", "import timeit"),
    ],
    house.memory_errors_only_in_devices: [
        ("bench/worker.py", "try:\n    f()\nexcept MemoryError:\n    g()"),
        ("bench/measure.py", "import torch\nE = torch.OutOfMemoryError"),
    ],
    house.processes_only_in_their_rooms: [
        ("bench/cli.py", "import signal"),
        ("bench/measure.py", "from signal import SIGTERM"),
        ("bench/store.py", "import os\nos.killpg(1, 9)"),
        ("bench/measure.py", "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1, 1))"),
        ("bench/environment.py", "import subprocess\nsubprocess.run(['x'], start_new_session=True)"),
    ],
    house.generators_only_in_inputs: [
        ("bench/step.py", "import torch\ng = torch.Generator()"),
        ("bench/step.py", "import torch\ntorch.manual_seed(0)"),
        ("attention_impls/layers/x.py", "import numpy as np\nx = np.random.rand(3)"),
    ],
    house.terminals_only_in_console: [
        ("bench/supervisor.py", "print('done')"),
        ("bench/worker.py", "import sys\nsys.stderr.write('x')"),
        ("bench/commands/x.py", "import click\nclick.echo('x')"),
        ("bench/report/x.py", "from rich.table import Table"),
        ("bench/report/x.py", "from sys import stdout"),
    ],
    house.runs_only_in_store: [
        ("bench/compare.py", "from pathlib import Path\np = Path('results') / 'x'"),
        ("bench/commands/x.py", "def f(folder):\n    return folder / 'results'"),
        ("bench/report/x.py", "def f(folder):\n    return folder.glob('*.jsonl')"),
    ],
    house.drawing_only_in_report: [
        ("bench/compare.py", "import matplotlib"),
        ("bench/report/figures.py", "import matplotlib.pyplot as plt"),
        ("bench/report/figures.py", "from matplotlib import pyplot"),
    ],
    house.data_does_not_run: [
        ("bench/store/reading.py", "import pickle"),
        ("bench/spec.py", "eval('1')"),
        ("bench/store/reading.py", "import torch\ntorch.load('x')"),
    ],
    house.no_broad_silence: [
        ("bench/worker.py", "try:\n    f()\nexcept Exception:\n    pass"),
        ("bench/worker.py", "try:\n    f()\nexcept:\n    g()"),
        ("bench/worker.py", "import contextlib\nwith contextlib.suppress(Exception):\n    f()"),
    ],
    house.commands_import_little: [
        ("bench/commands/run.py", "import torch"),
        ("bench/commands/run.py", "from bench.plan import build"),
    ],
    house.no_catch_all_modules: [("bench/utils.py", ""), ("attention_impls/common/x.py", "")],
    house.no_promises_no_banners: [
        ("bench/plan.py", "x = 1  # TODO: later"),
        ("bench/plan.py", "# ------------------ helpers"),
    ],
    house.folders_hold_their_noun: [
        ("bench/commands/fly.py", "x = 1"),
        ("bench/metrics/fly.py", "METRIC = 1"),
        ("bench/report/sections/fly.py", "def SECTION_(): ..."),
        ("attention_impls/variants/scores/fly.py", "x = 1"),
        ("attention_impls/transforms/fly.py", "if True:\n    TRANSFORM = 1"),
    ],
    house.long_files: [("bench/plan.py", "x = 1\n" * 251)],
    house.long_functions: [("bench/plan.py", "def f():\n" + "    x = 1\n" * 40)],
}
SIZES = (house.long_files, house.long_functions)


@pytest.mark.parametrize("rule", [rule for rule in MUTANTS if rule not in SIZES], ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(rule):
    assert house.offences(rule) == []


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [(rule, *planted) for rule, many in MUTANTS.items() for planted in many],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:40],
)
def test_a_planted_offence_is_caught(rule, path, text):
    assert house.check(rule, path, text) != []


def test_every_rule_of_the_house_is_asked_and_has_a_mutant():
    arguments = ("path", "text", "tree")
    rules = {
        f for f in vars(house).values() if getattr(getattr(f, "__code__", None), "co_varnames", ())[:3] == arguments
    }
    assert rules == set(MUTANTS)


def test_a_rule_does_not_see_offences_where_there_are_none():
    allowed = {
        house.cuda_only_in_devices: ("bench/devices/cuda.py", "import torch\ntorch.cuda.synchronize()"),
        house.step_clocks_only_in_devices: ("bench/child.py", "import time\ntime.monotonic()"),
        house.generators_only_in_inputs: (
            "attention_impls/contract.py",
            "import torch\ndef f(g: torch.Generator): ...",
        ),
        house.processes_only_in_their_rooms: ("bench/timing.py", "import resource\nresource.getrusage(1)"),
        house.runs_only_in_store: ("bench/x.py", '"""Reads a .jsonl file."""\nimport click\nclick.option("--results")'),
        house.no_broad_silence: ("bench/x.py", "try:\n    f()\nexcept BrokenPipeError:\n    pass"),
        house.data_does_not_run: ("bench/x.py", "import re\nre.compile('x')\nmodel.eval()"),
    }
    for rule, (path, text) in allowed.items():
        assert house.check(rule, path, text) == [], rule.__name__


def test_files_are_short_but_for_a_stated_list():
    assert set(house.offences(house.long_files)) == set(LONG_FILES)


def test_functions_are_short_but_for_a_stated_list():
    assert set(house.offences(house.long_functions)) == set(LONG_FUNCTIONS)


def test_every_suite_in_its_folder_is_a_suite():
    from bench.spec import load, suite_names, suites_folder

    assert sorted(path.name for path in suites_folder().iterdir()) == [f"{name}.toml" for name in suite_names()]
    for name in suite_names():
        suite = load(name)
        assert suite.name == name and suite.why and suite.budget_s and suite.reference and suite.sweeps


def _layers(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_nobody_imports_what_lies_above():
    done = _layers(ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize(
    ("path", "line", "contract"),
    [
        ("bench/record.py", "import torch", "The reading side knows neither torch nor attention_impls"),
        ("attention_impls/names.py", "import bench.errors", "attention_impls knows nothing of bench"),
        ("bench/step.py", "import pandas", "The measuring side runs in a bare GPU image"),
        ("bench/step.py", "import bench.environment", "Measuring processes neither look around nor store nor talk"),
        ("bench/spec.py", "import attention_impls.names", "What is written down is read without torch"),
        ("bench/errors.py", "import bench.store", "Data flows one way"),
    ],
)
def test_an_import_from_above_is_caught(tmp_path, path, line, contract):
    for package in house.PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    target = tmp_path / path
    target.write_text(f"{target.read_text('utf-8')}\n{line}\n", "utf-8")
    done = _layers(tmp_path)
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-1000:]
    assert re.search(rf"{contract} BROKEN", done.stdout)


def test_tests_live_where_the_rules_do_not_look():
    assert all("tests" not in path.parts for path in house.sources())
    assert ROOT / "bench" / "record.py" in house.sources()
    assert ROOT / "attention_impls" / "contract.py" in house.sources()


@pytest.mark.skipif(not readme.documents(), reason="there is no README yet")
def test_documents_name_only_commands_and_options_that_are_there():
    found = [
        text
        for path in readme.documents()
        for line in readme.typed(path.read_text("utf-8"), path.name)
        for text in readme.unknown_to_attnbench(line)
    ]
    assert found == []


@pytest.mark.skipif(not (ROOT / "tox.ini").is_file(), reason="there is no tox.ini yet")
def test_documents_name_only_tox_environments_that_are_there():
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(ROOT / "tox.ini", encoding="utf-8")
    known = {name.removeprefix("testenv:") for name in settings.sections()}
    asked = {
        name
        for path in readme.documents()
        for line in readme.typed(path.read_text("utf-8"), path.name)
        for name in readme.tox_environments(line)
    }
    assert asked <= known, f"{sorted(asked - known)} are not in tox.ini, which has {sorted(known)}"


def test_a_command_nobody_has_is_caught_in_a_document():
    block = "```sh\n$ attnbench fly --high\nattnbench list metrics --fly && attnbench list --json  # all\n```\n"
    text = f"{block}and `attnbench soar`"
    lines = readme.typed(text, "x.md")
    found = [sentence for line in lines for sentence in readme.unknown_to_attnbench(line)]
    assert [sentence.rpartition(": ")[2] for sentence in found] == [
        "no command fly",
        "no option --fly",
        "no command soar",
    ]


def test_a_tox_environment_is_read_off_a_command():
    lines = readme.typed("```\npip install tox && tox run -e sweep,lint\n```", "x.md")
    assert [readme.tox_environments(line) for line in lines] == [[], ["sweep", "lint"]]


def test_every_file_says_what_it_is():
    for path in house.sources():
        assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{path} says nothing of itself"
