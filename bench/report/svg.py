"""A drawn picture as SVG for the page: small, its ink the page's, its text the page's font."""

from __future__ import annotations

import re

from markupsafe import Markup

from bench.report.strangers import SHORT, clean

THEMED = {"#1b1c1e": "var(--ink)", "#c9ccd1": "var(--grid)", "#ffffff": "var(--panel)"}


def inline(source: str, alt: str) -> Markup:
    """Matplotlib's SVG made fit to stand inside a page; its ids are as unique as the salt it was drawn with."""
    body = source[source.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)  # matplotlib repeats each text in a comment
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r' (?:d|x|y|transform|points)="[^"]*"', _round, body)
    for colour, variable in THEMED.items():
        body = body.replace(f": {colour}", f": {variable}")
    body = re.sub(r"\s*\n\s*", " ", body)
    box = re.findall(r'viewBox="([^"]*)"', body)[0]
    inner = body[body.index(">") + 1 :]
    return Markup('<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{}" role="img" aria-label="{}">').format(
        box, clean(alt, SHORT)
    ) + Markup(inner)  # noqa: S704 - drawn by matplotlib, which escapes its texts


def _round(attribute: re.Match[str]) -> str:
    """Coordinates to a tenth of a point, which is finer than any eye."""
    return re.sub(r"(\.\d)\d+", r"\1", attribute.group())
