"""The program as people type it: what it finds, what it loads, what it exits with."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap

import click
import pytest

from bench import cli
from bench.errors import CannotDo, UserError
from bench.tests.house import ROOT


def attnbench(*words, environment=None, code=None):
    """Runs the program in a process of its own."""
    start = ["-c", code] if code else ["-m", "bench.cli", *words]
    return subprocess.run(
        [sys.executable, *start],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
    )


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Puts a command's file into the folder of commands; takes its text."""
    monkeypatch.setattr(cli.bench.commands, "__path__", [*cli.bench.commands.__path__, str(tmp_path)])

    def put(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), "utf-8")
        return name

    yield put
    for name in [name for name in sys.modules if name.startswith("bench.commands.planted")]:
        del sys.modules[name]


PLANTED = """
    import click
    from bench.errors import CannotDo, UserError

    @click.command()
    @click.argument("how")
    def COMMAND(how):
        "Does as told."
        if how == "finding": return 1
        if how == "exit": click.get_current_context().exit(1)
        if how == "user": raise UserError("you meant another thing")
        if how == "cannot": raise CannotDo("no room on the disk")
        if how == "interrupt": raise KeyboardInterrupt
        if how == "file": raise click.FileError("x", "not there")
"""


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_loads_no_heavy_package(word):
    code = f"""
import sys
from bench.cli import run
code = run(["{word}"])
heavy = {{"torch", "pandas", "matplotlib", "scipy", "numpy", "attention_impls"}} & set(sys.modules)
assert not heavy, heavy
sys.exit(code)
"""
    done = attnbench(code=code)
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout and "Usage:" in done.stdout


def test_help_tells_what_every_command_does():
    done = attnbench("--help")
    lines = done.stdout.split("Commands:")[1].splitlines()
    names = {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " " and line.split()}
    folder = ROOT / "bench" / "commands"
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} <= names
    assert all(len(line.split()) > 1 for line in lines if line.startswith("  ") and line[2] != " ")


def test_without_words_the_help_is_shown(capsys):
    assert cli.run([]) == 0
    assert "Usage: attnbench" in capsys.readouterr().out


def test_the_version_is_that_of_the_installed_package(capsys, monkeypatch):
    monkeypatch.setattr(cli.importlib.metadata, "version", lambda name: "7.8.9" if name == "attnbench" else "0")
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == "attnbench 7.8.9\n"


def test_without_an_installed_package_the_version_says_what_helps(capsys, monkeypatch):
    def missing(name):
        raise cli.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cli.importlib.metadata, "version", missing)
    assert cli.run(["--version"]) == 0
    assert "pip install" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("fine", 0, ""),
        ("finding", 1, ""),
        ("exit", 1, ""),
        ("user", 2, "attnbench: you meant another thing"),
        ("file", 2, "not there"),
        ("cannot", 3, "attnbench: no room on the disk"),
        ("interrupt", 130, "interrupted"),
    ],
)
def test_a_command_ends_with_the_exit_code_of_what_happened(command, capsys, how, code, told):
    assert cli.run([command("planted", PLANTED), how]) == code
    shown = capsys.readouterr()
    assert told in shown.err and "Traceback" not in shown.err
    assert shown.out == ""


def test_a_file_dropped_into_the_folder_is_a_command(command, capsys):
    command("planted", PLANTED)
    assert cli.run(["--help"]) == 0
    assert "planted" in capsys.readouterr().out


def test_a_file_without_its_noun_is_named_with_the_noun(command, capsys):
    command("planted_empty", "x = 1")
    assert cli.run(["planted_empty"]) == 3
    told = capsys.readouterr().err
    assert "bench/commands/planted_empty.py" in told and "COMMAND" in told


def test_a_misspelt_command_gets_the_nearest(capsys):
    assert cli.run(["doctr"]) == 2
    assert "did you mean 'doctor'" in capsys.readouterr().err


def test_a_misspelt_option_gets_the_nearest(capsys):
    assert cli.run(["list", "--jsno"]) == 2
    assert "--json" in capsys.readouterr().err


def test_a_missing_argument_says_how_to_get_help(capsys):
    assert cli.run(["show"]) == 2
    told = capsys.readouterr().err
    assert "NAME" in told and "attnbench show --help" in told


def test_only_the_asked_command_is_imported():
    code = (
        "import sys; from bench.cli import run; run(['show', '-h']); sys.exit('bench.commands.doctor' in sys.modules)"
    )
    assert attnbench(code=code).returncode == 0


def test_ctrl_c_in_a_command_ends_with_130():
    code = """
import os, signal, sys, click
from bench import cli

@click.command()
def wait():
    "Waits."
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()

cli.CommandFolder.get_command = lambda *_: wait
sys.exit(cli.run(["list"]))
"""
    done = attnbench(code=code)
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("before", ["", "sys.stdout.write('left in the buffer by somebody')"])
@pytest.mark.parametrize("amount", [1, 10_000])
def test_a_reader_that_goes_away_is_no_traceback(before, amount):
    code = f"""
import sys, time, click
from bench import cli, console

@click.command()
def talk():
    "Talks."
    time.sleep(0.5)
    for _ in range({amount}):
        try:
            console.out("x" * 100)
        except BrokenPipeError:
            {before or "pass"}
            raise

cli.CommandFolder.get_command = lambda *_: talk
sys.exit(cli.run(["list"]))
"""
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    start = [sys.executable, "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(start, cwd=ROOT, env=buffered, text=True, **pipes) as process:
        process.stdout.close()
        told = process.stderr.read()
        process.wait(60)
    assert process.returncode == 128 + signal.SIGPIPE
    assert told == ""


def test_no_color_keeps_escapes_away():
    assert "\x1b" not in attnbench("list", "metrics", environment={"NO_COLOR": "1", "FORCE_COLOR": "1"}).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_asks_this_program(capsys, shell):
    assert cli.run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_ATTNBENCH_COMPLETE={shell}_complete" in script


def test_a_shell_nobody_knows_is_a_users_mistake(capsys):
    assert cli.run(["completion", "tcsh"]) == 2
    assert "fish" in capsys.readouterr().err


def complete(words, monkeypatch, capsys):
    """What the program answers a shell that asks how the last word may go on."""
    monkeypatch.setenv("_ATTNBENCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    assert cli.run(["x"]) == 0
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]


def test_commands_are_completed(monkeypatch, capsys):
    assert complete("attnbench doc", monkeypatch, capsys) == ["doctor"]


def test_names_of_subjects_suites_and_metrics_are_completed(monkeypatch, capsys):
    assert "softmax.naive" in complete("attnbench show softmax.n", monkeypatch, capsys)
    assert complete("attnbench show peak_f", monkeypatch, capsys) == ["peak_forward"]
    assert complete("attnbench list sui", monkeypatch, capsys) == ["suites"]


def test_runs_are_completed_from_the_results_folder(monkeypatch, capsys, tmp_path):
    from bench import completion

    folder = tmp_path / "quartz-2c-8g-0001"
    folder.mkdir()
    (folder / "20260101t000000z-abc-quick-1234.jsonl").write_text("", "utf-8")
    monkeypatch.setenv("ATTNBENCH_RESULTS", str(tmp_path))
    context = click.Context(cli.attnbench)
    assert completion.runs(context, None, "2026") == ["20260101t000000z-abc-quick-1234"]
    assert completion.runs(context, None, "la") == ["latest"]


def test_errors_of_the_house_have_the_stated_exit_codes():
    assert (UserError("x").exit_code, CannotDo("x").exit_code) == (2, 3)


def test_every_command_that_prints_data_can_print_it_as_json(capsys):
    for words in (["list", "suites"], ["list", "commands"], ["show", "peak_forward"], ["list", "devices"]):
        assert cli.run([*words, "--json"]) == 0
        assert isinstance(json.loads(capsys.readouterr().out), list)


def test_the_installed_program_is_this_one():
    import tomllib

    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    module, function = scripts["attnbench"].split(":")
    assert importlib.util.find_spec(module) is not None
    assert callable(getattr(cli, function))
