"""`attnbench report`: which run, which folder, what is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.commands.report import COMMAND
from bench.errors import CannotDo, UserError
from bench.record import RunEnd, to_json
from bench.store import Run


@pytest.fixture
def stored(a_run, record, tmp_path: Path) -> Path:
    """A results folder with two runs, the second heavier."""
    for day in (28, 29):
        run = a_run(
            [record("softmax.naive", 128 * (day - 27))], run=f"202611{day}t000000z-abc", created=f"2026-11-{day}"
        )
        write(run, tmp_path / "results" / "quartz-2c-8g-0001" / f"{run.header.run}.jsonl")
    return tmp_path / "results"


def write(run: Run, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [run.header, *run.records, RunEnd(at=1.0, records=len(run.records))]
    path.write_text("".join(json.dumps(to_json(line), separators=(",", ":")) + "\n" for line in lines))


@pytest.fixture
def call(stored: Path, tmp_path: Path) -> Callable[..., Result]:
    where = ["--results", str(stored), "--out", str(tmp_path / "out")]
    return lambda *words: CliRunner().invoke(COMMAND, [*where, *words], catch_exceptions=False)


def test_the_latest_run_is_reported_and_the_path_printed(call, tmp_path: Path) -> None:
    result = call()
    assert result.exit_code == 0
    assert result.output.strip() == str(tmp_path / "out" / "20261129t000000z-abc" / "index.html")
    assert Path(result.output.strip()).is_file()


def test_a_run_is_named_as_everywhere_and_held_against_another(call) -> None:
    index = Path(call("20261128", "--baseline", "latest").output.strip())
    assert index.parent.name == "20261128t000000z-abc"
    assert "20261129t000000z-abc" in index.read_text()


def test_json_names_every_file(call) -> None:
    found = json.loads(call("--json").output)
    assert found["run"] == "20261129t000000z-abc"
    assert all(Path(path).is_file() for path in [found["index"], *found["figures"], *found["tables"]])
    assert len(found["tables"]) == 2 and found["figures"]


def test_a_run_that_is_not_there_is_the_users_mistake(call) -> None:
    with pytest.raises(UserError, match="nowhere"):
        call("nowhere")


def test_a_baseline_that_was_never_set_cannot_be_used(call) -> None:
    with pytest.raises(CannotDo, match="baseline set"):
        call("--baseline", "baseline")


def test_help_loads_nothing_heavy() -> None:
    heavy = {"torch", "pandas", "matplotlib", "scipy", "jinja2"}
    code = f"import sys, bench.commands.report; sys.exit(bool({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ)).returncode == 0
