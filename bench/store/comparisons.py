"""Comparisons of `attnbench ab` on disk: `<results>/comparisons/<id>.json`, each written once, in one step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from bench.errors import CannotDo, UserError
from bench.store.noise import write_json
from bench.store.reading import check_id, open_regular

COMPARISONS = "comparisons"
MAX_BYTES = 64 * 2**20


def save_comparison(results: Path, data: Mapping[str, Any]) -> Path:
    """Keeps a comparison under its id. Raises CannotDo."""
    path = results / COMPARISONS / f"{check_id(data['id'], 'the comparison id')}.json"
    write_json(path, data)
    return path


def find_comparison(results: Path, name: str) -> Path:
    """The file of the comparison that `name` means: a path, the beginning of an id, or latest. Raises UserError."""
    if name.endswith(".json") and Path(name).is_file():
        return Path(name)
    folder = results / COMPARISONS
    known = sorted(path for path in folder.glob("*.json") if path.is_file()) if folder.is_dir() else []
    fitting = known[-1:] if name == "latest" else [path for path in known if path.stem.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise UserError(f"no comparison {name!r} in {folder}; make one with: attnbench ab BASE")
    raise UserError(f"{len(fitting)} comparisons begin with {name!r}: {', '.join(p.stem for p in fitting[:5])}")


def read_comparison(path: Path) -> Any:
    """The data in a file, unchecked but for its size. Raises CannotDo."""
    with open_regular(path) as source:
        raw = source.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise CannotDo(f"{path} has more than {MAX_BYTES} bytes; no comparison has")
    try:
        return json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CannotDo(f"{path} is no JSON of ours: {type(error).__name__}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
