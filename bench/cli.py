"""The parser: commands are found by walking `bench/commands`, and a command's file is imported when it is asked for.

Exit codes: 0 fine, 1 a finding, 2 the user's mistake, 3 could not be done; 130 after Ctrl-C and 141 when the
reader of a pipe has gone, as shells count them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pkgutil
import sys
from collections.abc import Sequence

import click

import bench.commands
from bench import console
from bench.completion import COMPLETE_VARIABLE, PROGRAM, completer
from bench.errors import AttnbenchError, CannotDo, unknown

INTERRUPTED = 130
READER_GONE = 141


class CommandFolder(click.Group):
    """A group whose commands are the files of a package, each holding COMMAND."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the files."""
        return sorted(info.name for info in pkgutil.iter_modules(bench.commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command in that file, None where there is no such file. Raises CannotDo for a file without COMMAND."""
        if cmd_name not in self.list_commands(ctx):
            return None
        found = getattr(importlib.import_module(f"{bench.commands.__name__}.{cmd_name}"), "COMMAND", None)
        if not isinstance(found, click.Command):
            raise CannotDo(f"bench/commands/{cmd_name}.py: expected COMMAND, a click.Command")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, but a misspelt command is told the nearest."""
        word = args[0]
        if not ctx.resilient_parsing and not word.startswith("-") and word not in self.list_commands(ctx):
            raise unknown("command", word, self.list_commands(ctx))
        return super().resolve_command(ctx, args)


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        console.out(f"{PROGRAM} {version()}")
        ctx.exit()


@click.group(
    cls=CommandFolder,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 a finding, 2 a mistake in what was asked, 3 it could not be done.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show it and exit."
)
def attnbench() -> None:
    """Measure attention: latency, exact peak memory and numerical error, and show the answer.

    Begin with `attnbench doctor`, then `attnbench run --suite quick` and `attnbench report`.
    """


def version() -> str:
    """The installed version, or that it is not installed."""
    try:
        return importlib.metadata.version(PROGRAM)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed; try: pip install -e .)"


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; returns its exit code. A person's mistake is told in a sentence, never a traceback."""
    try:
        return _run(arguments)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # what is still buffered has no reader: let it be flushed into nothing
            os.dup2(nowhere, stream)
        return READER_GONE


def _run(arguments: Sequence[str]) -> int:
    """Not through click's `main`, which turns a reader that has gone into exit code 1, a finding here."""
    try:
        if os.environ.get(COMPLETE_VARIABLE):
            return _complete(os.environ[COMPLETE_VARIABLE])
        with attnbench.make_context(PROGRAM, list(arguments) or ["--help"]) as context:
            result = attnbench.invoke(context)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        console.err(_usage(error))
        return 2
    except AttnbenchError as error:
        console.err(f"{PROGRAM}: {error}")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        console.err(f"{PROGRAM}: interrupted")
        return INTERRUPTED


def _complete(asked: str) -> int:
    """Answers a shell's script, which asks for `<shell>_complete`."""
    console.out(completer(attnbench, asked.removesuffix("_complete")).complete())
    return 0


def _usage(error: click.ClickException) -> str:
    message = f"{PROGRAM}: {error.format_message()}"
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message}\n{context.get_usage()}\nTry: {context.command_path} --help"


def main() -> None:
    """The `attnbench` program."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
