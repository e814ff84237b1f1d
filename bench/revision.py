"""Which source was measured: the commit, and a digest of what differs from it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

MEASURED = ("bench", "attention_impls")  # a change elsewhere cannot change a number
UNKNOWN = "unknown"
SOURCE = Path(__file__).resolve().parent.parent  # the folder that holds both
TIMEOUT_S = 60


def commit(folder: Path = SOURCE) -> tuple[str, str]:
    """(commit, dirty digest) of the source below `folder`.

    The commit is "unknown" without git, outside a repository, or where this source is not part of the repository
    around it (an installed copy). The digest is "" when `bench` and `attention_impls` are as committed, else twelve
    hex digits of their status, their difference, and every new file's bytes.
    """
    if not _git(folder, "ls-files", "--", "bench/__init__.py"):
        return UNKNOWN, ""
    head = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    if not head:
        return UNKNOWN, ""
    return head.decode().strip(), _dirty(folder)


def _dirty(folder: Path) -> str:
    status = _git(folder, "status", "--porcelain", "--untracked-files=all", "-z", "--", *MEASURED)
    if not status:
        return ""
    found = hashlib.sha256(status)
    found.update(_git(folder, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--", *MEASURED))
    for name in _git(folder, "ls-files", "-z", "--others", "--exclude-standard", "--", *MEASURED).split(b"\0"):
        path = folder / os.fsdecode(name)
        if name and path.is_file():
            found.update(name + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def _git(folder: Path, *words: str) -> bytes:
    """What git says; b"" where there is no git or it refuses."""
    program = shutil.which("git")
    if program is None:
        return b""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    asked = [program, "-C", str(folder), *words]
    said = subprocess.run(asked, capture_output=True, env=environment, check=False, timeout=TIMEOUT_S)
    return said.stdout if said.returncode == 0 else b""
