"""`attnbench calibrate`: how far identical code wanders on this machine, so that verdicts ask for more than that."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.options import sweep_options

if TYPE_CHECKING:
    from bench.ab.session import Question
    from bench.store import Noise

ALARM_SHARE = 0.01  # more alarms than this on identical code, and no verdict of this machine is worth anything


def _options(command: Any) -> Any:
    return sweep_options(command, suite="pr")


@click.command("calibrate", short_help="Measure this machine's noise: the code against itself.")
@_options
@click.option("--sessions", default=10, show_default=True, type=click.IntRange(1), help="Comparisons to make.")
@click.option("--fresh-start", is_flag=True, help="Forget earlier sessions of this machine.")
@click.option(
    "--results",
    default=None,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where noise floors lie [ATTNBENCH_RESULTS, else ./results].",
)
@click.option("--wait", is_flag=True, help="Wait while another run is measuring on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print data instead of a table.")  # fmt: skip
@click.pass_context
def calibrate(ctx: click.Context, /, sessions: int, fresh_start: bool, results: Path | None, **chosen: Any) -> None:
    """Compares this checkout with itself, with the full path of `attnbench ab`, and keeps each cell's noise floor.

    Every session is kept as soon as it is done and adds to those before: interrupt it and go on whenever you like.
    Exits 1 where more than 1 % of the verdicts on identical code were worse or better.
    """
    from bench import console, store
    from bench.environment import machine
    from bench.lock import device_lock

    folder = store.results_folder(results)
    question = _question(chosen)
    name, digest = str(machine()["id"]), question.protocol.digest()
    noise = store.Noise(name, digest) if fresh_start else store.read_noise(folder, name, digest)
    with ExitStack() as held:
        for device in sorted({p.cell.device for p in question.plan.cells if not p.outcome}):
            held.enter_context(device_lock(device, wait=chosen["wait"], told=console.err))
        for number in range(sessions):
            noise = _one_more(noise, question, number, sessions)
            path = store.write_noise(folder, noise)
    _show(noise, chosen["as_json"], path)
    made = sum(len(session.ratios) for session in noise.sessions)
    ctx.exit(1 if sum(len(session.alarms) for session in noise.sessions) > ALARM_SHARE * made else 0)


def _question(chosen: dict[str, Any]) -> Question:
    from bench.ab.session import Question
    from bench.ab.sides import here
    from bench.ab.verdict import Rules
    from bench.child import require_platform
    from bench.options import planned

    require_platform()
    plan, protocol = planned(chosen)
    plugins = tuple(str(path.resolve()) for path in chosen["plugins"])
    return Question(plan, protocol, here("base"), here("head"), Rules(), {}, plugins, with_exact=False)


def _one_more(noise: Noise, question: Question, number: int, sessions: int) -> Noise:
    import math
    import time

    from bench import console, store
    from bench.ab.session import answer

    progress = console.progress()
    progress.start(sessions)
    try:
        found = answer(question, lambda what, *_: progress.advance(what, number, sessions, None))
    finally:
        progress.stop()
    timed = [row for row in found.rows if row.metric == "latency" and row.screened]
    ratios = {row.cell: math.log(row.ratio) for row in timed if row.ratio and math.isfinite(row.ratio)}
    alarms = tuple(row.cell for row in timed if row.verdict in ("worse", "better"))
    return replace(noise, sessions=(*noise.sessions, store.Session(time.time(), ratios, alarms)))


def _show(noise: Noise, as_json: bool, path: Path) -> None:
    from bench import console
    from bench.units import percent

    floors = noise.floors()
    alarms = [cell for session in noise.sessions for cell in session.alarms]
    if as_json:
        console.json_out({"machine": noise.machine, "sessions": len(noise.sessions), "floors": floors,
                          "alarms": alarms, "path": str(path)})  # fmt: skip
        return
    console.table(("cell", "noise floor"), [(cell, percent(1 + floor)) for cell, floor in sorted(floors.items())])
    made = sum(len(session.ratios) for session in noise.sessions)
    console.out(
        f"\n{len(noise.sessions)} sessions of identical code, {made} verdicts, {len(alarms)} alarms\nkept: {path}"
    )


COMMAND = calibrate
