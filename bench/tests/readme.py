"""The commands that the README and the documents tell people to type."""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from bench.cli import attnbench
from bench.tests.house import ROOT

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(attnbench [^`]+)`")
_SEPARATORS = re.compile(r"\s*(?:&&|\|\||;|\|)\s*")


@dataclass(frozen=True)
class Typed:
    """A command line, in words, and the document it stands in."""

    document: str
    words: tuple[str, ...]


def documents() -> list[Path]:
    """README.md, CONTRIBUTING.md and everything below docs/, those that are there."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if path.is_file()]


def typed(text: str, document: str) -> list[Typed]:
    """Every command line in a document's fenced blocks, and those of attnbench between backticks."""
    blocks = "\n".join(_FENCE.findall(text)).replace("\\\n", " ").splitlines()
    commands = [part for line in blocks for part in _SEPARATORS.split(line.strip().removeprefix("$ "))]
    commands += _INLINE.findall(text)
    return [Typed(document, tuple(words)) for command in commands if (words := _words(command))]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=True)
    except ValueError:  # no command: a line of another language
        return []


def unknown_to_attnbench(line: Typed) -> list[str]:
    """What `attnbench …` says that no command or option is for; placeholders in capitals are left alone."""
    if line.words[:1] != ("attnbench",):
        return []
    rest = [word for word in line.words[1:] if word not in ("…", "...")]
    if not rest or rest[0].startswith("-"):
        return []
    context = click.Context(attnbench, info_name="attnbench")
    missing = [word for word in rest[0].split("|") if attnbench.get_command(context, word) is None]
    if missing:
        return [f"{line.document}: {' '.join(line.words)}: no command {', '.join(missing)}"]
    known = _options(attnbench.get_command(context, rest[0].split("|")[0]), context)
    asked = {word.partition("=")[0] for word in rest[1:] if re.match(r"--?[a-z]", word)}
    return [f"{line.document}: {' '.join(line.words)}: no option {option}" for option in sorted(asked - known)]


def _options(command: click.Command | None, context: click.Context) -> set[str]:
    if command is None:
        return set()
    inner = (
        [command.get_command(context, name) for name in command.list_commands(context)]
        if isinstance(command, click.Group)
        else []
    )
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own | {"-h", "--help"} | {option for sub in inner for option in _options(sub, context)}


def tox_environments(line: Typed) -> list[str]:
    """The environments that a `tox` command names, or [] for any other command."""
    words = list(line.words)
    if words[:1] != ["tox"]:
        return []
    named = [after for before, after in itertools.pairwise(words) if before in ("-e", "-qe", "--env")]
    return [name for names in named for name in names.split(",")]
