"""How contenders look: colours that the colour-blind tell apart (Okabe and Ito 2008), and a marker each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888")
MARKERS = (("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("X", "✖"), ("p", "⬟"))
INK = "#1b1c1e"  # text, axes and the reference; the page puts its own ink there


@dataclass(frozen=True)
class Look:
    """A contender's colour, matplotlib's marker and the sign for it in a legend."""

    colour: str
    marker: str
    sign: str


REFERENCE = Look(INK, "o", "●")


def chapters(cells: pd.DataFrame) -> list[dict[str, Look]]:
    """Contenders in portions that a picture can hold, each with the references, and everyone's look.

    Contenders of one variant stay beside each other; a portion holds as many as there are colours.
    """
    references = sorted({str(name) for name in cells["reference"].dropna()} & set(cells["subject"]))
    order = cells[["variant", "subject"]].astype(str).drop_duplicates("subject").sort_values(["variant", "subject"])
    others = [name for name in order["subject"] if name not in references]
    portions = _even(others, len(COLOURS)) or [[]]
    known = dict.fromkeys(references[:1], REFERENCE)
    extra = references[1:]  # several references in one run: the second and later look like contenders
    return [known | _looks([*extra, *portion]) for portion in portions]


def _looks(names: Sequence[str]) -> dict[str, Look]:
    count = len(COLOURS)
    return {name: Look(COLOURS[i % count], *MARKERS[(i + i // count) % count]) for i, name in enumerate(names)}


def _even(names: list[str], most: int) -> list[list[str]]:
    """The names in as few portions as `most` allows, all about as long, in order."""
    portions = -(-len(names) // most)
    return [names[i * len(names) // portions : (i + 1) * len(names) // portions] for i in range(portions)]
