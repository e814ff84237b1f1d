"""Things that may be missing on a machine, each with the command that helps."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """Something outside this package: `found()` looks for it without importing or running it."""

    what: str
    found: Callable[[], bool]
    install: str

    def missing(self) -> str | None:
        """A sentence when it is not here, with the command that helps; None when it is."""
        return None if self.found() else f"needs {self.what}, not found here; try: {self.install}"


def package(module: str, install: str) -> Need:
    """A Python package, by the module it brings."""
    return Need(
        f"the package {module}",
        lambda: importlib.util.find_spec(module) is not None,
        f"pip install {install}",
    )


def _compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++", "g++", "c++"))


CPP_COMPILER = Need("a C++ compiler (torch.compile builds its CPU kernels with it)", _compiler, "apt-get install g++")
