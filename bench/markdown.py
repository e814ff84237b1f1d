"""Texts as Markdown, of the kind that GitHub and most others read."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SPECIAL = re.compile(r"([\\|*`<\[\]]|(?<![^\W_])_|_(?![^\W_]))")  # an underscore inside a word emphasises nothing


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their columns' names. Cells are Markdown themselves: escape plain text, or show it as `code`."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell or ' ' for cell in line)} |" for line in lines)


def escape(text: str) -> str:
    """Plain text on one line that comes out as it was written."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """Text in type, on one line; "" stays "". A bar is escaped, which tables understand inside code too."""
    flat = " ".join(text.split()).replace("|", "\\|")
    if not flat:
        return ""
    longest = max(map(len, re.findall("`+", flat)), default=0)
    if not longest:
        return f"`{flat}`"
    fence = "`" * (longest + 1)  # a run of as many would end it
    return f"{fence} {flat} {fence}"
