"""One comparison from end to end: exact things first, then the screen, then fresh pairs for the suspects."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from bench.ab import exact, verdict
from bench.ab.pairs import BASE, HEAD, Block, Driver, Pair
from bench.ab.result import Comparison, Row, SideInfo
from bench.ab.sides import Side
from bench.ab.verdict import Rules, Screened
from bench.cell import Cell
from bench.errors import CannotDo, UserError
from bench.header import make_header
from bench.plan import Plan
from bench.protocol import Protocol
from bench.stats import log_ratios, median
from bench.supervisor import limited

GATED_THREADS = 1  # on more, a core that is lost for a moment stalls a whole step


@dataclass(frozen=True)
class Question:
    """What is to be compared, and how surely. floors: by cell id, as fractions."""

    plan: Plan
    protocol: Protocol
    base: Side
    head: Side
    rules: Rules
    floors: Mapping[str, float]
    plugins: tuple[str, ...] = ()
    with_exact: bool = True


Tell = Callable[[str, int, int], None]
"""(what goes on, steps done, steps in all)"""


def answer(question: Question, tell: Tell) -> Comparison:
    """Measures both sides and judges every cell. Raises CannotDo where nothing can be compared, UserError for a
    question that no answer could come of."""
    _require_sense(question)
    start = time.monotonic()
    header = make_header(question.plan, question.protocol)
    rows = _exact(question, tell) if question.with_exact else []
    unfit = {row.cell for row in rows if row.metric == "outcome" and row.verdict != "same"}
    cells = {i: p.cell for i, p in enumerate(question.plan.cells) if not p.outcome and p.cell.id not in unfit}
    if not cells and not rows:
        raise CannotDo("there is no cell that both sides can be measured on")
    timed = _timed(question, cells, tell) if cells else []
    created = datetime.now(UTC)
    notes = [f"{side.label}: {side.own_driver}" for side in (question.base, question.head) if side.own_driver]
    return Comparison(
        id=f"{created.strftime('%Y%m%dt%H%M%Sz')}-{secrets.token_hex(4)}",
        created=created.isoformat(timespec="seconds"),
        machine=str(header.machine.get("id", "")),
        base=_info(question.base),
        head=_info(question.head),
        protocol=question.protocol.digest(),
        rules=asdict(question.rules),
        seconds=time.monotonic() - start,
        notes=tuple(notes),
        rows=tuple(timed + rows),
    )


def _require_sense(question: Question) -> None:
    """Raises UserError for cells that no one worker can hold, and for rounds too few to find anything."""
    cells = [p.cell for p in question.plan.cells if not p.outcome]
    places = sorted({f"{cell.setting.split('/')[-1]}{' tf32' * (cell.workload.dtype == 'tf32')}" for cell in cells})
    if len(places) > 1:
        raise UserError(f"ab takes one device and number of threads at a time; these are {', '.join(places)}")
    rules, least = question.rules, question.rules.least_rounds(max(len(cells), 1))
    if rules.pairs * rules.rounds < least:
        raise UserError(f"{rules.pairs} pairs of {rules.rounds} rounds can find nothing among {len(cells)} cells; "
                        f"it takes {least} rounds in all")  # fmt: skip


def _info(side: Side) -> SideInfo:
    return SideInfo(side.label, side.commit, side.own_driver or "this checkout's")


def _exact(question: Question, tell: Tell) -> list[Row]:
    tell("right and memory of the base", 0, question.rules.pairs + 1)
    before = exact.judged(question.plan, question.base, question.protocol, question.plugins)
    tell("right and memory of the head", 0, question.rules.pairs + 1)
    after = exact.judged(question.plan, question.head, question.protocol, question.plugins)
    return exact.rows(before, after)


def _timed(question: Question, cells: Mapping[int, Cell], tell: Tell) -> list[Row]:
    """Screens every cell, confirms the suspects, and says of each what was found."""
    rules = question.rules
    driver = Driver(question.base, question.head, cells, limited(question.protocol), question.plugins)
    floors = {i: question.floors.get(cell.id, 0.0) for i, cell in driver.cells.items()}
    screened = _pairs(driver, list(cells), rules.pairs, 0, rules.rounds, "screening", tell)
    found = verdict.screen(_logs(screened, cells), rules, floors)
    suspects = [i for i, s in found.items() if s.suspect]
    confirmed = _pairs(driver, suspects, rules.fresh, rules.pairs, rules.rounds, "confirming", tell) if suspects else []
    return [_row(driver, i, screened, confirmed, found.get(i), rules) for i in cells]


def _pairs(
    driver: Driver, chosen: Sequence[int], count: int, first: int, rounds: int, what: str, tell: Tell
) -> list[Pair]:
    """Fresh pairs over the chosen cells; one that failed in a pair is not asked again."""
    made: list[Pair] = []
    for number in range(count):
        left = [i for i in chosen if not any(pair.out(i) for pair in made)]
        if not left:
            break
        made.append(driver.pair(first + number, left, rounds, _teller(tell, what, number, count)))
    return made


def _teller(tell: Tell, what: str, number: int, count: int) -> Callable[[str], None]:
    return lambda at: tell(f"{what}, {at}", number, count)


def _logs(pairs: Sequence[Pair], cells: Mapping[int, Cell]) -> dict[int, list[list[float]]]:
    """log(head / base) of each pair's rounds, by cell; cells that failed are left out."""
    whole = {i for i in cells if not any(pair.out(i) for pair in pairs)}
    return {i: [_log(pair.blocks.get(i, [])) for pair in pairs] for i in whole}


def _log(blocks: Sequence[Block]) -> list[float]:
    return log_ratios([(block.head, block.base) for block in blocks])


def _row(
    driver: Driver,
    cell: int,
    screened: Sequence[Pair],
    confirmed: Sequence[Pair],
    found: Screened | None,
    rules: Rules,
) -> Row:
    what = driver.cells[cell]
    failed = [(at, text) for pair in (*screened, *confirmed) for (at, c), text in pair.failed.items() if c == cell]
    if failed or found is None:
        return _broken(what.id, failed)
    fresh = [_log(pair.blocks.get(cell, [])) for pair in confirmed if cell in pair.blocks]
    said = _gated(verdict.decide(found, fresh, rules), what)
    blocks = [block for pair in screened for block in pair.blocks[cell]]
    return Row(
        cell=what.id,
        metric="latency",
        verdict=said.verdict,
        why=said.why,
        base=median([b.base for b in blocks]),
        head=median([b.head for b in blocks]),
        unit="s",
        ratio=said.ratio,
        low=found.low,
        high=found.high,
        q=found.q,
        limit=found.limit,
        resolution=found.resolution,
        inner=screened[0].inner.get(cell, 0),
        screened=_kept(screened, cell),
        confirmed=_kept(confirmed, cell),
    )


def _gated(said: verdict.Verdict, cell: Cell) -> verdict.Verdict:
    """On several threads nothing is called worse or better: a core that is lost for a moment stalls a whole step."""
    if cell.device != "cpu" or cell.threads <= GATED_THREADS or said.verdict not in ("worse", "better"):
        return said
    return replace(said, verdict="unclear", why=f"{said.why}; {cell.threads} threads: shown, never judged")


def _kept(pairs: Sequence[Pair], cell: int) -> tuple[tuple[tuple[float, float], ...], ...]:
    return tuple(tuple((b.base, b.head) for b in pair.blocks[cell]) for pair in pairs if cell in pair.blocks)


def _broken(name: str, failed: Sequence[tuple[int, tuple[str, str]]]) -> Row:
    """A cell that failed while it was timed: on the head alone it broke, on the base alone it is mended."""
    sides = {at for at, _ in failed}
    texts = "; ".join(dict.fromkeys(f"{('base', 'head')[at]}: {outcome}: {note}" for at, (outcome, note) in failed))
    if sides == {HEAD}:
        return Row(name, "outcome", "broke", texts)
    if sides == {BASE}:
        return Row(name, "outcome", "fixed", texts)
    return Row(name, "outcome", "not_comparable", texts or "no round of it was measured on both sides")
