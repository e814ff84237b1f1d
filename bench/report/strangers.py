"""What text from a stored run may become: runs are data from strangers, and a report is opened in a browser.

HTML escaping is jinja's (autoescape, always on); here is what escaping does not do: control and
direction-changing characters, endless names, spreadsheet formulas, ids that become commands.
"""

from __future__ import annotations

import re
import unicodedata

from bench.record import Scalar

SHORT = 120  # names and coordinates on the page: the longest honest subject is about 80
LONG = 400  # sentences on the page; the CSV has all of it
TEXT = 4000  # a variant's documentation

_CELL_ID = re.compile(r"[a-z0-9][a-z0-9_.+:/-]{0,399}")
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")  # control, format (bidi overrides), surrogates, unassigned
_CSV_LIMIT = 32_000  # a spreadsheet cell holds 32,767 characters


def clean(text: str, limit: int = LONG) -> str:
    """One line of visible characters, at most `limit` of them: what is hidden becomes U+FFFD."""
    clipped = text if len(text) <= limit else text[: limit - 1] + "…"
    return clipped if clipped.isprintable() else "".join(_visible(letter) for letter in clipped)


def drawable(text: str, limit: int = 48) -> str:
    """Text for a picture: the letters of Latin-1, which its font has, others as backslash escapes."""
    return clean(clean(text, limit).encode("latin-1", "backslashreplace").decode("latin-1"), limit)


def defuse(value: Scalar) -> Scalar:
    """A CSV cell that no spreadsheet takes for a formula: an apostrophe before = + - @ tab CR; numbers stay."""
    if not isinstance(value, str):
        return value
    text = clean(value.replace("\r\n", "\n"), _CSV_LIMIT) if len(value) > _CSV_LIMIT else value
    return "'" + text if text.lstrip(" \n").startswith(("=", "+", "-", "@", "\t", "\r")) else text


def repeat_command(cell: str) -> str | None:
    """`attnbench run --cell ID`, or None where the id holds what no cell id holds (a shell would read it)."""
    return f"attnbench run --cell {cell}" if _CELL_ID.fullmatch(cell) else None


def _visible(letter: str) -> str:
    if letter in "\n\t\r":
        return " "
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(letter) in _HIDDEN else letter
