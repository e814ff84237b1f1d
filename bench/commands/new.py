"""`attnbench new`: writes a complete, working file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

TEMPLATES = Path(__file__).parent / "templates"
SOURCE = Path(__file__).resolve().parents[2]


class Kind(NamedTuple):
    """Where a file of a kind goes, how it ends, and what to type next when it lies there."""

    folder: str
    suffix: str
    then: tuple[str, ...]


KINDS = {
    "variant": Kind(
        "attention_impls/variants/scores",
        ".py",
        (
            "attnbench show {name}",
            "python -m pytest attention_impls/tests -k {name}",
            "attnbench run --subject {name}.naive",
        ),
    ),
    "transform": Kind(
        "attention_impls/transforms",
        ".py",
        ("attnbench show {name}", "python -m pytest attention_impls/tests -k {name}"),
    ),
    "layer": Kind(
        "attention_impls/layers", ".py", ("attnbench show {name}", "attnbench run --subject softmax.naive+in:{name}")
    ),
    "metric": Kind("bench/metrics", ".py", ("attnbench show {name}", "attnbench run --suite quick")),
    "suite": Kind("bench/suites", ".toml", ("attnbench plan --suite {name}", "attnbench run --suite {name}")),
}


@click.command("new", short_help="Write the file to start a variant, transform, layer, metric or suite from.")
@click.argument("kind", type=click.Choice(tuple(KINDS)))
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Where to write it (default: the folder where this kind is found at once).",
)
def new(kind: str, name: str, folder: Path | None) -> None:
    """Writes a complete file for a KIND called NAME that works unchanged, and says what to type next.

    Nothing else needs an edit: the file is found by its folder. An existing file is never overwritten.
    """
    from bench import console

    _check(kind, name)
    target = (SOURCE / KINDS[kind].folder if folder is None else folder) / f"{name}{KINDS[kind].suffix}"
    _write(target, text_of(kind, name))
    console.out(f"wrote {target}; next:")
    for line in KINDS[kind].then if folder is None else _elsewhere(kind, target):
        console.out(f"  {line.format(name=name)}")


def text_of(kind: str, name: str) -> str:
    """The file's text."""
    from string import Template

    text = (TEMPLATES / f"{kind}{KINDS[kind].suffix}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(name=name, NAME=name.upper())


def _check(kind: str, name: str) -> None:
    """Raises UserError for a name outside the grammar, or one that is taken."""
    import re

    from attention_impls.names import NAME
    from bench.errors import UserError
    from bench.inventory import names_of

    if not NAME.match(name):
        near = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_0123456789")
        hint = f"; try {near}" if NAME.match(near) else ""
        raise UserError(f"{name!r} is no name; names are a-z, then a-z, 0-9 and _{hint}")
    if name in names_of(kind):
        raise UserError(f"there is a {kind} called {name} already; see: attnbench show {name}")


def _write(target: Path, text: str) -> None:
    from bench.errors import CannotDo, UserError

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{target} is there already; it is left as it is") from None
    except OSError as error:
        raise CannotDo(f"cannot write {target}: {error.strerror}; choose another folder with --dir") from None


def _elsewhere(kind: str, target: Path) -> tuple[str, ...]:
    if kind == "variant":
        return (f"attnbench run --plugin {target} --subject {{name}}.naive",)
    if kind == "suite":
        return (f"attnbench plan --suite {target}", f"attnbench run --suite {target}")
    return (f"move it to {KINDS[kind].folder}/, where it is found",)


COMMAND = new
