"""`python -m bench.trust`: collects the campaigns behind docs/trust.md and evaluates them; goes on where it ended.

python -m bench.trust pairs --count 40            pairs of processes: the same code, and 3, 5, 10 % slower
python -m bench.trust pairs --count 40 --load 2   the same, while so many other processes compute
python -m bench.trust live same --count 63        whole comparisons of a commit with itself
python -m bench.trust live 5 --count 20           and with one in which a single cell does 5 % more
python -m bench.trust evaluate                    what the rules make of them, as docs/trust/evaluated.json
python -m bench.trust page                        the tables of docs/trust.md
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench import console

if TYPE_CHECKING:
    from bench.cell import Cell
    from bench.protocol import Protocol

FOLDER = Path("docs") / "trust"


@click.group(help=__doc__.split("\n", maxsplit=1)[0] if __doc__ else "")
@click.option("--folder", default=FOLDER, type=click.Path(file_okay=False, path_type=Path), show_default=True)
@click.pass_context
def trust(ctx: click.Context, folder: Path) -> None:
    """Keeps the folder."""
    ctx.obj = folder


def _cells() -> tuple[dict[int, Cell], Protocol]:
    from bench.devices import absent, default_device
    from bench.plan import build
    from bench.protocol import Protocol
    from bench.spec import load

    plan = build(load("pr"), default_device=default_device(), absent_devices=absent())
    return {i: p.cell for i, p in enumerate(plan.cells) if not p.outcome}, Protocol()


@contextmanager
def _loaded(processes: int) -> Iterator[None]:
    """So many processes that do nothing but compute, beside what is measured."""
    running = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(processes)]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.join()


def _spin() -> None:
    import torch

    torch.set_num_threads(1)
    a = torch.ones(512, 512)
    while True:
        a @ a


@trust.command()
@click.option(
    "--count", default=40, show_default=True, type=click.IntRange(1), help="Pairs of each kind under this load."
)
@click.option(
    "--load", default=0, show_default=True, type=click.IntRange(0), help="Other processes that compute meanwhile."
)
@click.option("--wait", is_flag=True, help="Wait while another run is measuring.")
@click.pass_obj
def pairs(folder: Path, count: int, load: int, wait: bool) -> None:
    """Takes pairs of processes until there are enough of each kind."""
    from bench.lock import device_lock
    from bench.trust.pairs import collect

    cells, protocol = _cells()
    with device_lock("cpu", wait=wait, told=console.err), _loaded(load):
        collect(folder / "pairs.gz", cells, protocol, count, load, console.err)


@trust.command()
@click.argument("kind", type=click.Choice(["same", "3", "5", "10"]))
@click.option("--count", default=20, show_default=True, type=click.IntRange(1), help="Comparisons of this kind in all.")
@click.pass_obj
def live(folder: Path, kind: str, count: int) -> None:
    """Runs whole comparisons until there are enough of a kind."""
    from bench.errors import UserError
    from bench.trust import raw
    from bench.trust.live import collect

    cells, _ = _cells()
    table = next((line for line in raw.read(folder / "pairs.gz") if line["kind"] == "table"), None)
    if table is None:
        raise UserError("the extra work is sized by the first pairs: python -m bench.trust pairs --count 1")
    collect(folder / "live.gz", table, cells, kind, count, console.err)


@trust.command()
@click.option("--draws", default=1000, show_default=True, type=click.IntRange(24), help="Decisions drawn for each row.")
@click.pass_obj
def evaluate(folder: Path, draws: int) -> None:
    """Applies the rules to what was collected."""
    from bench.trust.tables import evaluated, write

    write(folder / "evaluated.json", evaluated(folder, draws, console.err))


@trust.command()
@click.pass_obj
def page(folder: Path) -> None:
    """Prints the tables of docs/trust.md."""
    from bench.trust.tables import read, words

    console.out(words(read(folder / "evaluated.json")))


if __name__ == "__main__":
    trust()
