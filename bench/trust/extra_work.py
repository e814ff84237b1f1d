"""Real extra work in every step of chosen cells; copied into the kernels of a side that a campaign slows down.

Each forward of such a cell multiplies matrices of so many rows once more. The rows stand in extra_work.json beside
this file, by kernel, query length and direction. It knows nothing of bench: it becomes a part of attention_impls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

WIDTH = 64
MOST_ROWS = 1024  # of one product, which stays in a core's own cache
TABLE = Path(__file__).with_suffix(".json")


def key(kernel: str, q_len: int, direction: str) -> str:
    """How a cell is called in the table."""
    return f"{kernel}|{q_len}|{direction}"


def work(rows: int) -> Callable[[], None]:
    """Products of `rows` rows in all, [rows, 64] · [64, 64] in float32."""
    if rows <= 0:
        return lambda: None
    repeats = -(-rows // MOST_ROWS)
    each = -(-rows // repeats)
    a, b, out = torch.ones(each, WIDTH), torch.ones(WIDTH, WIDTH), torch.empty(each, WIDTH)

    def multiply() -> None:
        for _ in range(repeats):
            torch.mm(a, b, out=out)

    return multiply


def slowing(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The catalogue's `find`, whose subjects do the work that the table asks of them."""
    table: Mapping[str, int] = json.loads(TABLE.read_text("utf-8"))

    def found(text: Any) -> Any:
        subject = find(text)
        if not any(name.startswith(f"{subject.name}|") for name in table):
            return subject
        return replace(subject, inner=_slowed(str(subject.name), subject.inner, table))

    return found


def _slowed(name: str, inner: Any, table: Mapping[str, int]) -> Any:
    from attention_impls.evidence import Told

    def prepare(call: Any, lse: bool) -> Any:
        kernel = inner.prepare(call, lse)
        length = call.q.shape[-2]
        alone, trained = (work(table.get(key(name, length, way), 0)) for way in ("fwd", "fwdbwd"))

        def run(call: Any) -> Any:
            (trained if torch.is_grad_enabled() else alone)()
            return kernel(call)

        return Told(run, (kernel,))

    return replace(inner, prepare=prepare)
