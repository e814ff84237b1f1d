"""Choosing cells by an expression over their ids: words joined by and, or, not and brackets, as pytest's -k."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from bench.errors import UserError

_TOKEN = re.compile(r"\s*(?:([()])|([\w.:+/\-]+))")

Chooser = Callable[[str], bool]


def chooser(expression: str) -> Chooser:
    """A function that says whether an id is chosen. A word matches anywhere, case ignored. Raises UserError."""
    tokens = _tokens(expression)
    choose = _either(tokens, expression)
    if tokens:
        raise UserError(f"-k {expression!r}: did not expect {tokens[0]!r}")
    return lambda text: choose(text.lower())


def _tokens(expression: str) -> list[str]:
    tokens, at = [], 0
    text = expression.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise UserError(f"-k {expression!r}: cannot read {text[at:].strip()!r}; use words, and, or, not, ( )")
        tokens.append(found[1] or found[2])
        at = found.end()
    return tokens


def _either(tokens: list[str], expression: str) -> Chooser:
    return _chain(tokens, expression, "or", _both, any)


def _both(tokens: list[str], expression: str) -> Chooser:
    return _chain(tokens, expression, "and", _one, all)


def _chain(
    tokens: list[str],
    expression: str,
    word: str,
    part: Callable[[list[str], str], Chooser],
    whole: Callable[[Iterable[bool]], bool],
) -> Chooser:
    """Parts joined by a word."""
    parts = [part(tokens, expression)]
    while tokens and tokens[0] == word:
        tokens.pop(0)
        parts.append(part(tokens, expression))
    return lambda text: whole(choose(text) for choose in parts)


def _one(tokens: list[str], expression: str) -> Chooser:
    if not tokens or tokens[0] in (")", "and", "or"):
        raise UserError(f"-k {expression!r}: expected a word")
    token = tokens.pop(0)
    if token == "not":  # noqa: S105 - a word of the expression
        inner = _one(tokens, expression)
        return lambda text: not inner(text)
    if token == "(":  # noqa: S105 - a word of the expression
        inner = _either(tokens, expression)
        if not tokens or tokens.pop(0) != ")":
            raise UserError(f"-k {expression!r}: a bracket is not closed")
        return inner
    word = token.lower()
    return lambda text: word in text
