"""Choosing cells by an expression over their ids: words joined by and, or, not and brackets, as pytest's -k."""

from __future__ import annotations

import re
from collections.abc import Callable

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
    left = _both(tokens, expression)
    while tokens and tokens[0] == "or":
        tokens.pop(0)
        left = _or(left, _both(tokens, expression))
    return left


def _both(tokens: list[str], expression: str) -> Chooser:
    left = _one(tokens, expression)
    while tokens and tokens[0] == "and":
        tokens.pop(0)
        left = _and(left, _one(tokens, expression))
    return left


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


def _or(left: Chooser, right: Chooser) -> Chooser:
    return lambda text: left(text) or right(text)


def _and(left: Chooser, right: Chooser) -> Chooser:
    return lambda text: left(text) and right(text)
