"""`attnbench profile`: where one cell spends its time, as a flame graph."""

from __future__ import annotations

from pathlib import Path

import click

from bench.errors import CannotDo, UserError

START_S = 60  # importing torch, drawing inputs and compiling, before the loop begins


@click.command("profile", short_help="Draw a flame graph of one cell with py-spy.")
@click.argument("cell", metavar="CELL")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="The file to write [reports/profiles/<cell>.svg, or .json].",
)
@click.option("--seconds", type=float, default=10.0, show_default=True, help="How long to look.")
@click.option("--rate", type=int, default=100, show_default=True, help="Samples a second.")
@click.option("--native", is_flag=True, help="Show C++ frames too (ATen's kernels).")
@click.option("--speedscope", is_flag=True, help="Write speedscope's JSON instead of an SVG.")
@click.option("--plugin", "plugins", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
              help="A Python file with IMPLEMENTATIONS; repeatable.")  # fmt: skip
def profile(
    cell: str, out: Path | None, seconds: float, rate: int, native: bool, speedscope: bool, plugins: tuple[Path, ...]
) -> None:
    """Runs the step of CELL (an id, as the report gives it) in a child of its own, and samples it with py-spy.

    A profile is never taken while anything is timed: sampling would be in the numbers.
    """
    from bench import console
    from bench.options import load_plugins
    from bench.plan import build
    from bench.spec import Spec

    if seconds <= 0 or rate <= 0:
        raise UserError("--seconds and --rate must be more than 0")
    load_plugins(plugins)
    planned = build(Spec(name="profile", sweeps=(), reference=(), cells=(cell,))).groups[0].cells[0].cell
    target = out or Path("reports/profiles") / _file_name(planned.id, speedscope)
    target.parent.mkdir(parents=True, exist_ok=True)
    words = ["record", "--output", str(target), "--rate", str(rate)]
    words += ["--format", "speedscope"] if speedscope else []
    words += ["--native"] if native else []
    _sample(words, planned.id, seconds, plugins)
    console.out(str(target))


def _file_name(cell: str, speedscope: bool) -> str:
    return cell.replace("/", "__").replace(":", "-") + (".json" if speedscope else ".svg")


def _sample(words: list[str], cell: str, seconds: float, plugins: tuple[Path, ...]) -> None:
    """Runs py-spy on the loop until that ends. Raises CannotDo with what py-spy says."""
    import shutil
    import subprocess
    import sys
    import sysconfig

    program = shutil.which("py-spy") or shutil.which("py-spy", path=sysconfig.get_path("scripts"))
    if program is None:
        raise CannotDo("py-spy is not installed; try: pip install py-spy")
    child = [sys.executable, "-m", "bench.loop", cell, str(seconds), *map(str, plugins)]
    done = subprocess.run(
        [program, *words, "--", *child], capture_output=True, text=True, check=False, timeout=START_S + 20 * seconds
    )
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise CannotDo(f"py-spy ended with {done.returncode}: {said[-400:]}")


COMMAND = profile
