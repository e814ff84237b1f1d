"""What stands on either side of a comparison: a commit's kernels, another Python's packages, or another subject.

The driver (protocol, clock, inputs) is this checkout's for both sides and only `attention_impls` comes from the
commit, or a change of the harness would show as a change of the kernels. Where the commit's kernels speak another
version of the contract, that side uses its own driver, and says so.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.child import Place
from bench.errors import CannotDo, UserError
from bench.revision import SOURCE, commit

_VERSION = re.compile(r"^CONTRACT_VERSION = (\d+)", re.MULTILINE)
GIT_TIMEOUT_S = 300


@dataclass(frozen=True)
class Side:
    """One side: how its worker is started, and what it must be seen to have imported.

    kernels: the folder of its attention_impls. subject: what it measures in place of a cell's own, "" for that.
    own_driver: why it does not use this checkout's driver, "" where it does.
    """

    label: str
    place: Place
    kernels: Path | None
    subject: str = ""
    commit: str = ""
    own_driver: str = ""

    def prove(self, ready: Mapping[str, Any]) -> None:
        """Raises CannotDo where the worker imported other kernels: an editable install shadows without a word."""
        found = Path(str(ready["kernels"]))
        if self.kernels is not None and found != self.kernels.resolve():
            raise CannotDo(
                f"{self.label}: its worker imported {found}, not {self.kernels.resolve()}; nothing was measured"
            )


def here(label: str = "", subject: str = "") -> Side:
    """This checkout as it is, uncommitted changes included."""
    name, dirty = commit()
    text = name if not dirty else f"{name}, changed ({dirty})"
    place = Place(root=str(SOURCE))
    return Side(label or "working tree", place, SOURCE / "attention_impls", subject=subject, commit=text)


def elsewhere(label: str, python: str) -> Side:
    """The same checkout under another Python: other versions of torch, or of a library."""
    program = Path(python)
    program = program / "bin" / "python" if program.is_dir() else program
    if not program.is_file():
        raise UserError(f"no Python at {python}; give an interpreter, or the folder of a virtual environment")
    name, dirty = commit()
    place = Place(python=str(program), root=str(SOURCE))
    return Side(label, place, SOURCE / "attention_impls", commit=f"{name} {dirty}".strip())


@contextmanager
def checked_out(revision: str, *, strict: bool = False) -> Iterator[Side]:
    """A commit's kernels under this checkout's driver, in a worktree that is gone afterwards.

    Raises UserError for a revision git does not know, CannotDo without git, for a commit older than the contract,
    and, where its contract has another version, under `strict`.
    """
    full = resolve(revision)
    with TemporaryDirectory(prefix="attnbench-ab-") as scratch:
        tree = Path(scratch) / "tree"
        _git("worktree", "add", "--detach", "--quiet", str(tree), full)
        try:
            yield _side(revision, full, tree, Path(scratch) / "joined", strict)
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _side(revision: str, full: str, tree: Path, joined: Path, strict: bool) -> Side:
    kernels = tree / "attention_impls"
    theirs, ours = contract_version(kernels), contract_version(SOURCE / "attention_impls")
    if theirs is None:
        raise CannotDo(f"{revision}: its kernels have no contract to be measured by (attention_impls/contract.py)")
    why = "" if theirs == ours else f"its contract has version {theirs}, this checkout's {ours}: it used its own driver"
    if why and strict:
        raise CannotDo(f"{revision}: its contract has version {theirs}, this checkout's {ours} (--strict-driver)")
    if why and not (tree / "bench" / "ab" / "worker.py").is_file():
        raise CannotDo(
            f"{revision}: its contract has version {theirs}, this checkout's {ours}, and it has no driver for ab"
        )
    joined.mkdir()
    (joined / "attention_impls").symlink_to(kernels)
    (joined / "bench").symlink_to((tree if why else SOURCE) / "bench")
    return Side(f"{revision} ({full[:8]})", Place(root=str(joined)), kernels, commit=full, own_driver=why)


def contract_version(kernels: Path) -> int | None:
    """The version of the contract that kernels are written in, read off their text; None where there is none."""
    path = kernels / "contract.py"
    found = _VERSION.search(path.read_text("utf-8")) if path.is_file() else None
    return int(found[1]) if found else None


def resolve(revision: str) -> str:
    """The full hash of a revision. Raises UserError naming it, CannotDo where there is no git."""
    if revision.startswith("-"):
        raise UserError(f"{revision!r} is no revision")
    try:
        return _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()
    except CannotDo as error:
        if "not installed" in str(error):
            raise
        raise UserError(f"git knows no commit {revision!r} here; try a branch, a tag or a hash") from None


def _git(*words: str) -> str:
    """What git says. Raises CannotDo with its own words."""
    try:
        said = subprocess.run(
            ["git", "-C", str(SOURCE), *words], capture_output=True, text=True, check=False, timeout=GIT_TIMEOUT_S
        )
    except FileNotFoundError:
        raise CannotDo("git is not installed; ab needs it to fetch a commit (apt install git)") from None
    if said.returncode:
        raise CannotDo(f"git {words[0]}: {said.stderr.strip() or 'it refused'}")
    return said.stdout
