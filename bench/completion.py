"""How a shell completes this program's words: the script's side of it, and what is offered for an argument."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import ShellComplete, get_completion_class

from bench.errors import unknown

PROGRAM = "attnbench"
COMPLETE_VARIABLE = "_ATTNBENCH_COMPLETE"  # set by the script that a shell was given


def completer(program: click.Command, shell: str) -> ShellComplete:
    """click's side of a shell's completion. Raises UserError for a shell it does not know."""
    made = get_completion_class(shell)
    if made is None:
        raise unknown("shell", shell, ("bash", "zsh", "fish"))
    return made(program, {}, PROGRAM, COMPLETE_VARIABLE)


def runs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Runs in the results folder that begin so, newest names last, and the words that stand for runs."""
    from bench.store import results_folder, run_ids

    return _beginning(["latest", "baseline", *run_ids(results_folder(ctx.params.get("results")))], incomplete)


def names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Subjects, variants, transforms, layers, metrics, suites, devices and models that begin so."""
    from bench.describe import names as everything

    return _beginning(everything(), incomplete)


def suites(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Suites that begin so."""
    from bench.spec import suite_names

    return _beginning(suite_names(), incomplete)


def subjects(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Bare implementations that begin so."""
    from attention_impls import catalogue

    return _beginning(catalogue.implementations(), incomplete)


def models(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Well-known models that begin so."""
    from bench.models import models as known

    return _beginning(known(), incomplete)


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
