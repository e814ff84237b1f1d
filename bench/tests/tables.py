"""Tables of Markdown, as a reader sees them."""

from __future__ import annotations

from markdown_it import MarkdownIt

Table = list[list[str]]


def tables(text: str) -> list[Table]:
    """Every table as rows of texts, its head first."""
    found: list[Table] = []
    row: list[str] | None = None
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and row is not None:
            found[-1].append(row)
            row = None
        elif token.type == "inline" and row is not None:
            row.append(
                "".join(c.content for c in token.children or () if c.type in ("text", "text_special", "code_inline"))
            )
    return found
