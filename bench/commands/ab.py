"""`attnbench ab`: two commits, two Pythons or two implementations, measured alternately and judged."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.options import sweep_options

if TYPE_CHECKING:
    from bench.ab.result import Comparison
    from bench.ab.session import Question


def _options(command: Any) -> Any:
    return sweep_options(command, suite="pr")


@click.command("ab", short_help="Measure two commits (or Pythons, or subjects) alternately and judge them.")
@click.argument("base", required=False)
@click.argument("head", required=False)
@_options
@click.option("--base-env", default=None, metavar="PYTHON", help="Measure the base under this Python (or environment).")
@click.option("--head-env", default=None, metavar="PYTHON", help="Measure the head under this Python (or environment).")
@click.option("--threshold", default="3%", show_default=True, metavar="PERCENT", help="Smallest change that counts.")
@click.option("--pairs", default=4, show_default=True, type=click.IntRange(1), help="Pairs of processes of the screen.")
@click.option("--rounds", default=16, show_default=True, type=click.IntRange(6), help="Rounds of a pair.")
@click.option("--fresh", default=5, show_default=True, type=click.IntRange(3), help="Fresh pairs that confirm.")
@click.option("--times-only", is_flag=True, help="Leave out bytes, operations and errors.")
@click.option("--strict-driver", is_flag=True, help="Exit 3 where a side needs a driver of its own.")
@click.option(
    "--results",
    default=None,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it is kept and noise floors lie [ATTNBENCH_RESULTS, else ./results].",
)
@click.option(
    "--markdown",
    default=None,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a pull request's comment.",
)
@click.option(
    "--explain",
    default=None,
    metavar="CELL",
    help="Say why a cell's verdict was reached; without BASE, of the comparison kept last.",
)
@click.option(
    "--of",
    "kept",
    default="latest",
    metavar="ID",
    show_default=True,
    help="Without BASE: which kept comparison to show; the beginning of an id, or a .json file.",
)
@click.option("--all", "everything", is_flag=True, help="Show also what stayed the same.")
@click.option("--wait", is_flag=True, help="Wait while another run is measuring on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print data instead of a table.")  # fmt: skip
@click.pass_context
def ab(ctx: click.Context, /, base: str | None, head: str | None, **chosen: Any) -> None:
    """Holds HEAD (default: this checkout as it is) against BASE and exits 1 where something is worse.

    BASE and HEAD are commits, or subjects such as softmax.naive; without BASE a kept comparison is shown. Live
    workers of both sides take turns, round by round; what the screen suspects is measured again by fresh processes,
    and only then called worse or better.

    Exit 0: nothing worse (also: unclear); 1: something is worse, broke or is gone; 3: nothing could be compared.
    """
    from bench import console, store
    from bench.ab import words
    from bench.ab.result import from_data, to_data

    results = store.results_folder(chosen["results"])
    if base is None:
        path = store.find_comparison(results, chosen["kept"])
        found = from_data(store.read_comparison(path))
    else:
        found = _compare(base, head, results, chosen)
        path = store.save_comparison(results, to_data(found))
    if chosen["markdown"]:
        chosen["markdown"].write_text(words.comment(found), "utf-8")
    if chosen["as_json"]:
        console.json_out(to_data(found))
    else:
        _show(found, chosen, path)
    ctx.exit(1 if found.regressed else 0)


def _compare(base: str, head: str | None, results: Path, chosen: dict[str, Any]) -> Comparison:
    from bench import console
    from bench.ab.session import answer
    from bench.child import require_platform
    from bench.lock import device_lock

    require_platform()
    progress = console.progress()
    with ExitStack() as held:
        question = _question(base, head, results, chosen, held)
        for device in sorted({p.cell.device for p in question.plan.cells if not p.outcome}):
            held.enter_context(device_lock(device, wait=chosen["wait"], told=console.err))
        progress.start(question.rules.pairs)
        try:
            return answer(question, lambda what, done, total: progress.advance(what, done, total, None))
        finally:
            progress.stop()


def _question(base: str, head: str | None, results: Path, chosen: dict[str, Any], held: ExitStack) -> Question:
    """What the options ask; worktrees live as long as `held`."""
    from bench import store
    from bench.ab.asked import sides_and_plan
    from bench.ab.session import Question
    from bench.ab.verdict import Rules
    from bench.environment import machine
    from bench.options import planned
    from bench.units import fraction

    rules = Rules(threshold=fraction(chosen["threshold"]), pairs=chosen["pairs"], rounds=chosen["rounds"],
                  fresh=chosen["fresh"])  # fmt: skip
    plan, protocol = planned(chosen)
    one, two, plan, subjects = sides_and_plan(base, head, plan, chosen, held)
    floors = store.read_noise(results, str(machine()["id"]), protocol.digest()).floors()
    plugins = tuple(str(path.resolve()) for path in chosen["plugins"])
    return Question(plan, protocol, one, two, rules, floors, plugins, not (chosen["times_only"] or subjects))


def _show(found: Comparison, chosen: dict[str, Any], path: Path) -> None:
    from bench import console
    from bench.ab import words

    rows = [row for row in found.worst_first() if chosen["everything"] or row.verdict != "same"]
    if rows:
        console.table(words.COLUMNS, [words.cells(row) for row in rows])
        console.out("")
    for note in found.notes:
        console.out(note)
    console.out(words.summary(found))
    if chosen["explain"]:
        console.out(f"\n{words.explain(found, chosen['explain'])}")
    console.out(f"kept: {path}\nwhy a verdict: attnbench ab --explain CELL")


COMMAND = ab
