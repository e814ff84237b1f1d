"""Where a campaign's rounds are kept: a gzip file of JSON lines, each line a member of its own, so that a campaign
killed at any moment loses at most the line under way and goes on where it was."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def append(path: Path, data: Mapping[str, Any]) -> None:
    """Adds one line, after the last whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_bytes() if path.is_file() else b""
    end = max((end for end, _ in _members(before)), default=0)
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode() + b"\n", mtime=0)
    with path.open("r+b" if before else "wb") as file:
        file.seek(end)
        file.write(packed)
        file.truncate()


def read(path: Path) -> list[dict[str, Any]]:
    """Every whole line in order; none where there is no file."""
    return [json.loads(text) for _, text in _members(path.read_bytes())] if path.is_file() else []


def _members(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(where it ends, its text) of each whole member; a torn last one is left out."""
    left = data
    while left:
        member = zlib.decompressobj(wbits=31)
        try:
            text = member.decompress(left)
        except zlib.error:
            return
        if not member.eof:
            return
        left = member.unused_data
        yield len(data) - len(left), text
