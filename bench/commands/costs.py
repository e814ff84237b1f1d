"""`attnbench costs`: how time and memory of every implementation really grow, beside what each claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from attention_impls.contract import Implementation
    from bench.console import Progress
    from bench.costs import Cost
    from bench.growth import Limits

MIB = 2**20


@click.command("costs", short_help="Measure how costs grow with the length, and hold claims to it.")
@click.option(
    "-k", "keep", default="", metavar="EXPR", help="Only implementations whose name fits: words, and, or, not."
)
@click.option("--check", is_flag=True, help="Exit 1 where a claim is wrong; without -k nothing is measured.")
@click.option("--again", is_flag=True, help="Measure also what is kept already.")
@click.option("--bytes-only", is_flag=True, help="Hold only the bytes to their claims; times need a quiet machine.")
@click.option("--max-seconds", default=5.0, show_default=True, help="Longest forward, in seconds.")
@click.option("--max-mib", default=4096, show_default=True, help="Largest peak of a forward, in MiB.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds for all lengths of one implementation.")
@click.option(
    "--file",
    "path",
    default=None,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where costs are kept [docs/costs.json].",
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A Python file with IMPLEMENTATIONS; repeatable.",
)
@click.option("--wait", is_flag=True, help="Wait while another run is measuring on this machine.")  # fmt: skip
@click.pass_context
def costs(ctx: click.Context, /, keep: str, check: bool, path: Path | None, **chosen: Any) -> None:
    """Measures peak bytes and seconds of a forward at doubling lengths, on one CPU thread, and fits exponents of n.

    Everything is kept as soon as it is measured; what is kept (at these limits, by this torch, on this machine) is not
    measured twice. --check holds bytes to the claim within 0.05 and time to at most 0.25 above it.
    """
    from bench import console
    from bench.cost_runs import subjects
    from bench.costs import KEPT, read
    from bench.errors import UserError
    from bench.growth import Limits
    from bench.options import load_plugins
    from bench.select import chooser

    load_plugins(chosen["plugins"])
    path, fits = path or KEPT, chooser(keep) if keep else lambda _: True
    asked = {name: i for name, i in subjects().items() if fits(name)}
    if not asked:
        raise UserError(f"-k {keep!r} fits no implementation that runs here; try: attnbench list implementations")
    if keep or not check:
        _measure(asked, Limits(chosen["max_seconds"], chosen["max_mib"] * MIB, chosen["timeout"]), path, chosen)
    kept = read(path)
    found = {name: kept[name] for name in asked if name in kept}
    console.table(COLUMNS, [_row(name, asked[name], cost) for name, cost in found.items()])
    wrong = _contradictions(asked, found, times=not chosen["bytes_only"])
    console.out(f"\n{len(found)} measured, {len(asked) - len(found)} not yet, {len(wrong)} against their claim")
    for text in wrong:
        console.out(text)
    ctx.exit(1 if check and wrong else 0)


def _measure(asked: dict[str, Implementation], limits: Limits, path: Path, chosen: dict[str, Any]) -> None:
    from bench import console
    from bench.child import require_platform
    from bench.cost_runs import measure
    from bench.costs import read, write
    from bench.lock import device_lock

    require_platform()
    kept = read(path)
    due = [name for name in asked if chosen["again"] or not _current(kept.get(name), limits)]
    progress = console.progress()
    plugins = [str(plugin.resolve()) for plugin in chosen["plugins"]]
    with device_lock("cpu", wait=chosen["wait"], told=console.err):
        progress.start(len(due))
        try:
            for name, cost in measure(due, limits, plugins=plugins, told=lambda text: _tell(progress, text, due)):
                kept[name] = cost
                write(path, kept)
        finally:
            progress.stop()


def _tell(progress: Progress, name: str, due: list[str]) -> None:
    progress.advance(name, due.index(name), len(due), None)


def _current(cost: Cost | None, limits: Limits) -> bool:
    """Whether a kept measurement is what measuring now would give."""
    from bench.environment import environment, machine

    if cost is None:
        return False
    here = (limits.seconds, limits.bytes, environment()["torch"], machine()["id"])
    return (cost.max_seconds, cost.max_bytes, cost.torch, cost.machine) == here


COLUMNS = ("implementation", "time", "claimed", "bytes", "claimed ", "n", "ended")


def _row(name: str, implementation: Implementation, cost: Cost) -> tuple[str, ...]:
    from bench.costs import claimed, exponents

    time, peak = exponents((cost.time_exponent, cost.bytes_exponent))
    claims = claimed(implementation.growth)
    return name, time, claims[0], peak, claims[1], cost.range, cost.ended


def _contradictions(asked: dict[str, Implementation], found: dict[str, Cost], *, times: bool) -> list[str]:
    from bench.costs import contradicts

    return [f"{n}: {text}" for n, cost in found.items() for text in contradicts(asked[n].growth, cost, times=times)]


COMMAND = costs
