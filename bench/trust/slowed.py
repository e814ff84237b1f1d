"""Kernels with extra work in them: as a folder for a side, or as a commit for `attnbench ab`."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.ab.sides import Side
from bench.child import Place
from bench.revision import SOURCE
from bench.trust import extra_work

HOOK = """

from attention_impls import extra_work  # noqa: E402

find = extra_work.slowing(find)
"""
STEPS = (1, 4, 16, 64, 128, 256, 512, 1024, 4096, 16384, 65536)
REPEATS = 200


def change(kernels: Path, rows: Mapping[str, int]) -> None:
    """Puts the extra work into a copy of attention_impls."""
    shutil.copyfile(extra_work.__file__, kernels / "extra_work.py")
    (kernels / "extra_work.json").write_text(json.dumps(rows), "utf-8")
    with (kernels / "catalogue.py").open("a", encoding="utf-8") as catalogue:
        catalogue.write(HOOK)


@contextmanager
def folder(rows: Mapping[str, int], label: str) -> Iterator[Side]:
    """A side of this checkout's driver and kernels that do more."""
    with TemporaryDirectory(prefix="attnbench-trust-") as scratch:
        root = Path(scratch)
        shutil.copytree(
            SOURCE / "attention_impls", root / "attention_impls", ignore=shutil.ignore_patterns("tests", "__pycache__")
        )
        (root / "bench").symlink_to(SOURCE / "bench")
        change(root / "attention_impls", rows)
        yield Side(label, Place(root=str(root)), root / "attention_impls")


def commit(rows: Mapping[str, int], text: str) -> str:
    """The hash of a commit on top of HEAD whose kernels do more; no branch points to it."""
    with TemporaryDirectory(prefix="attnbench-trust-") as scratch:
        tree = Path(scratch) / "tree"
        _git(SOURCE, "worktree", "add", "--detach", "--quiet", str(tree), "HEAD")
        try:
            change(tree / "attention_impls", rows)
            _git(tree, "add", "--all")
            who = ("-c", "user.name=attnbench", "-c", "user.email=attnbench@localhost")
            _git(tree, *who, "commit", "--quiet", "--no-verify", "-m", text)
            return _git(tree, "rev-parse", "HEAD").strip()
        finally:
            _git(SOURCE, "worktree", "remove", "--force", str(tree))


def _git(where: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(where), *words], check=True, capture_output=True, text=True).stdout


def seconds_by_rows() -> dict[int, float]:
    """Seconds that the extra work takes on this machine, by rows; the median of many calls, on one thread."""
    import torch

    torch.set_num_threads(1)
    return {rows: _seconds(extra_work.work(rows)) for rows in STEPS}


def _seconds(multiply: Callable[[], None]) -> float:
    from bench.devices.cpu import DEVICE

    return statistics.median(DEVICE.block(multiply, 1) for _ in range(REPEATS))


def rows_for(seconds: float, known: Mapping[int, float]) -> int:
    """Rows whose work takes about so long, by a straight line between those that were timed."""
    points = sorted(known.items(), key=lambda point: point[0])
    below, above = points[0], points[-1]
    for low, high in pairwise(points):
        if low[1] <= seconds <= high[1]:
            below, above = low, high
            break
    slope = (above[0] - below[0]) / max(above[1] - below[1], 1e-12)
    return max(1, round(below[0] + slope * (seconds - below[1])))
