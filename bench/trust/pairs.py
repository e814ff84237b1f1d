"""The campaign of pairs: fresh processes of the same code, and of code with 3, 5 and 10 % of extra work in each cell.

The kinds take turns, so that all of them see the same hours. Each line has the raw rounds of one pair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from math import expm1
from pathlib import Path
from typing import Any

from bench.ab.pairs import Driver, Pair
from bench.ab.sides import Side, here
from bench.cell import Cell
from bench.protocol import Protocol
from bench.stats import log_ratios, mad, median
from bench.supervisor import limited
from bench.trust import raw, slowed
from bench.trust.extra_work import key

KINDS: Mapping[str, float] = {"same": 0.0, "3": 0.03, "5": 0.05, "10": 0.10}
ROUNDS = 16
SIZING = 4  # pairs that size the extra work
NORMAL_MAD = 1.4826

Tell = Callable[[str], None]


def collect(path: Path, cells: Mapping[int, Cell], protocol: Protocol, count: int, load: int, tell: Tell) -> None:
    """Takes pairs until the file has `count` of each kind under this load; goes on where it was broken off."""
    known = list(raw.read(path))
    table = next((line for line in known if line["kind"] == "table"), None)
    if table is None:
        table = _table(cells, protocol, tell)
        raw.append(path, table)
    with ExitStack() as stack:
        sides = {kind: stack.enter_context(_side(kind, share, table, cells)) for kind, share in KINDS.items() if share}
        sides["same"] = here("head")
        for number, kind in _missing(known, count, load):
            tell(f"{kind}, pair {number + 1} of {count}")
            driver = Driver(here("base"), sides[kind], cells, limited(protocol), seed=number)
            pair = driver.pair(number, list(cells), ROUNDS, lambda _: None)
            raw.append(path, _line(kind, number, load, cells, pair))


def _missing(known: list[dict[str, Any]], count: int, load: int) -> Iterator[tuple[int, str]]:
    done = {(line["kind"], line["number"]) for line in known if line["kind"] in KINDS and line["load"] == load}
    return ((number, kind) for number in range(count) for kind in KINDS if (kind, number) not in done)


def _table(cells: Mapping[int, Cell], protocol: Protocol, tell: Tell) -> dict[str, Any]:
    """Seconds of each cell, of the extra work by its rows, and what a little of it costs beyond its own time.

    That surplus (a call more, a colder cache) is measured with 5 % of work in each cell, by pairs that are not kept.
    """
    table: dict[str, Any] = {"kind": "table", "at": time.time(), "surplus": {}, "rows": slowed.seconds_by_rows()}
    tell("sizing the extra work: seconds of each cell")
    table["cells"] = {name: base for name, (base, _) in _sized(here("head"), cells, protocol, 1).items()}
    with _side("5", KINDS["5"], table, cells) as side:
        tell("sizing the extra work: what it costs beyond its own time")
        for name, (base, effect) in _sized(side, cells, protocol, SIZING).items():
            table["surplus"][name] = max(0.0, base * effect - KINDS["5"] * table["cells"][name])
    return table


def _sized(head: Side, cells: Mapping[int, Cell], protocol: Protocol, count: int) -> dict[str, tuple[float, float]]:
    """(seconds of the base, effect as a fraction) of each cell over some pairs."""
    driver = Driver(here("base"), head, cells, limited(protocol))
    made = [driver.pair(number, list(cells), ROUNDS, lambda _: None) for number in range(count)]
    taken = {i: [block for pair in made for block in pair.blocks.get(i, [])] for i in cells}
    return {
        cells[i].id: (median([b.base for b in blocks]), expm1(median(log_ratios([(b.head, b.base) for b in blocks]))))
        for i, blocks in taken.items()
        if blocks
    }


def rows_of(table: Mapping[str, Any], cells: Mapping[int, Cell], share: float) -> dict[str, int]:
    """Rows of extra work for each cell, so that it takes `share` longer, as well as the least work there is allows."""
    known = {int(rows): seconds for rows, seconds in table["rows"].items()}
    return {
        key(cell.subject, cell.workload.q_len, cell.direction): slowed.rows_for(
            share * table["cells"][cell.id] - table["surplus"].get(cell.id, 0.0), known
        )
        for cell in cells.values()
        if cell.id in table["cells"]
    }


def _side(kind: str, share: float, table: Mapping[str, Any], cells: Mapping[int, Cell]) -> AbstractContextManager[Side]:
    return slowed.folder(rows_of(table, cells, share), f"+{kind} %")


def _line(kind: str, number: int, load: int, cells: Mapping[int, Cell], pair: Pair) -> dict[str, Any]:
    blocks = {cells[i].id: [(b.base, b.head) for b in taken] for i, taken in pair.blocks.items()}
    failed = {cells[i].id: note for (_, i), (_, note) in pair.failed.items()}
    return {
        "kind": kind,
        "number": number,
        "load": load,
        "at": time.time(),
        "spread": spread(blocks.values()),
        "blocks": blocks,
        "failed": failed,
    }


def spread(cells: Iterable[Sequence[tuple[float, float]]]) -> float:
    """The round-to-round spread of a pair: the median over its cells of the ratios' robust standard deviation."""
    return median([NORMAL_MAD * mad(log_ratios([(head, base) for base, head in rounds])) for rounds in cells])
