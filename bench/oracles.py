"""What each variant is held against, and how independent of ours that is, as attention_impls/oracles.toml lists it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

LEVELS = {
    1: "another code base in another language",
    2: "another framework",
    3: "other authors, in torch",
    4: "another kernel of torch",
    5: "a loop of our own",
}


@dataclass(frozen=True)
class Oracle:
    """One test of a variant: against which library ("" at level 5), how independent (LEVELS), path::function."""

    variant: str
    level: int
    test: str
    library: str = ""

    def __post_init__(self) -> None:
        if self.level not in LEVELS or (self.level == max(LEVELS)) == bool(self.library):
            raise ValueError(f"oracle of {self.variant}: level {self.level} with library {self.library!r}; levels 1 to "
                             "4 name a library, level 5 names none")  # fmt: skip

    @property
    def text(self) -> str:
        """As a table has it: "fla (3)", "own loop (5)"."""
        return f"{self.library or 'own loop'} ({self.level})"


@cache
def oracles() -> tuple[Oracle, ...]:
    """All that are listed, the most independent of a variant first. Raises TypeError or ValueError for a bad entry."""
    listed = tomllib.loads((files("attention_impls") / "oracles.toml").read_text("utf-8"))["oracle"]
    return tuple(sorted((Oracle(**entry) for entry in listed), key=lambda o: (o.variant, o.level, o.library)))


def held_against(variant: str) -> str:
    """The oracles of a variant in a few words, "" where none is listed."""
    return ", ".join(dict.fromkeys(oracle.text for oracle in oracles() if oracle.variant == variant))
