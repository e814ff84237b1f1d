"""The campaign of whole comparisons: `attnbench ab` as a user types it, between commits, over and over.

`same` holds HEAD against itself. A number holds HEAD against a commit on top of it in which one cell does so many
percent more; which cell goes round. Every comparison is kept whole, with its raw rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.cell import Cell
from bench.errors import CannotDo
from bench.revision import SOURCE
from bench.trust import raw, slowed
from bench.trust.pairs import KINDS, rows_of

Tell = Callable[[str], None]
REFUSED = 3  # ab's exit where nothing could be compared


def collect(path: Path, table: Mapping[str, Any], cells: Mapping[int, Cell], kind: str, count: int, tell: Tell) -> None:
    """Runs comparisons of a kind until the file has `count` of them."""
    done = sum(line["kind"] == kind for line in raw.read(path))
    for number in range(done, count):
        target = list(cells.values())[number % len(cells)]
        tell(f"{kind}, comparison {number + 1} of {count}" + (f": {target.id}" if KINDS[kind] else ""))
        head = "HEAD"
        if KINDS[kind]:
            rows = rows_of(table, {0: target}, KINDS[kind])
            head = slowed.commit(rows, f"{target.id} does {kind} % more")
        before = time.time()
        found = _compared(head)
        raw.append(path, {"kind": kind, "number": number, "target": target.id if KINDS[kind] else "",
                          "at": before, "found": found})  # fmt: skip


def _compared(head: str) -> dict[str, Any]:
    """What `attnbench ab HEAD <head>` says, as data. Raises CannotDo with its words where it could not compare."""
    with TemporaryDirectory(prefix="attnbench-trust-") as results:
        words = ["ab", "HEAD", head, "--suite", "pr", "--times-only", "--json", "--results", results, "--wait"]
        said = subprocess.run(
            [sys.executable, "-m", "bench.cli", *words], cwd=SOURCE, capture_output=True, text=True, check=False
        )
    if said.returncode not in (0, 1):
        raise CannotDo(f"attnbench {' '.join(words)} ended with {said.returncode}: {said.stderr[-400:]}")
    data: dict[str, Any] = json.loads(said.stdout)
    return data
