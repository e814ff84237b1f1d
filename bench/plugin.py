"""The pytest side: every cell of a suite is a parameter of the one test in bench/test_attention.py.

`pytest --benchmark-only` (any --benchmark-… option, or --attn-results) measures, with the code of `attnbench run`;
pytest-benchmark shows the recorded rounds. Without, each cell's step runs once and nothing is stored. Nothing here
touches a session that does not collect that file: torch is imported with it, refusals are made after it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.pytest_options import add_options, given, in_parallel, refusal, wants_numbers

if TYPE_CHECKING:
    from bench.on_demand import OnDemand
    from bench.plan import Plan, Planned
    from bench.protocol import Protocol
    from bench.replay import Clock

PARAMETER = "attn_cell"
HERE = Path(__file__).resolve().parent
OWN_TESTS = (HERE / "tests", HERE.parent / "attention_impls" / "tests")


@dataclass
class Door:
    """What a session knows of its cells; `demand` is set, or `error`, once it is known which were chosen."""

    plan: Plan
    protocol: Protocol
    clock: Clock
    demand: OnDemand | None = None
    error: str = ""
    session: pytest.Session | None = None

    def planned(self, cell: str) -> Planned:
        """The cell of that id."""
        return next(p for p in self.plan.cells if p.cell.id == cell)


DOOR = pytest.StashKey[Door]()
BAD_SUITE = pytest.StashKey[str]()
REMARKS = pytest.StashKey[list[str]]()
SEPARATE_RUNS = (
    "Two runs of identical code differ by as much as a quarter on a shared machine; memory, operators and errors "
    "do not: hold them against each other with attnbench compare"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the --attn-… options."""
    add_options(parser)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --benchmark-only this project's own tests would be imported only to be skipped."""
    own = config.getoption("benchmark_only", False) and any(f in collection_path.parents for f in OWN_TESTS)
    return True if own else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes a parameter of each cell of the suite. A suite that makes no sense is told once all is collected."""
    if PARAMETER not in metafunc.fixturenames:
        return
    from bench.errors import AttnbenchError

    try:
        metafunc.parametrize(PARAMETER, _parameters(metafunc.config))
    except AttnbenchError as error:
        metafunc.config.stash[BAD_SUITE] = str(error)
        metafunc.parametrize(PARAMETER, [])


def _parameters(config: pytest.Config) -> list[Any]:
    from bench.options import planned
    from bench.replay import Clock

    chosen = {"suite": config.getoption("attn_suite"), "plugins": _plugins(config), "model": None, "budget": None}
    plan, protocol = planned({**chosen, "subjects": (), "keep": "", "cells": ()})
    door = config.stash[DOOR] = Door(plan, protocol, Clock())
    return [
        pytest.param(p.cell.id, id=p.cell.id, marks=pytest.mark.benchmark(group=p.cell.setting, timer=door.clock))
        for p in plan.cells
        if not p.companion
    ]


def _plugins(config: pytest.Config) -> list[Path]:
    return [Path(path) for path in config.getoption("attn_plugin")]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the groups of what is left after deselection. Raises UsageError for what cannot be honoured."""
    config = session.config
    if BAD_SUITE in config.stash:
        raise pytest.UsageError(config.stash[BAD_SUITE])
    door = config.stash.get(DOOR, None)
    chosen = {cell for item in session.items if (cell := _cell(item))}
    if door is None or not chosen or not wants_numbers(config):
        return
    door.session, door.error = session, refusal(config)
    if not door.error:
        door.demand = _demand(config, door, chosen)
    elif not in_parallel():  # a worker cannot end the session: there each test says why
        raise pytest.UsageError(door.error)


def _cell(item: pytest.Item) -> str | None:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get(PARAMETER)


def _demand(config: pytest.Config, door: Door, chosen: set[str]) -> OnDemand:
    from bench.on_demand import Limits, OnDemand, narrowed
    from bench.store import results_folder

    seconds, precision = given(config, "--benchmark-max-time"), given(config, "--benchmark-precision")
    return OnDemand(
        plan=narrowed(door.plan, chosen),
        protocol=door.protocol,
        limits=Limits(
            max_time_s=None if seconds is None else float(seconds),
            min_rounds=given(config, "--benchmark-min-rounds"),
            precision=None if precision is None else float(precision),
        ),
        results=results_folder(config.getoption("attn_results")),
        plugins=_plugins(config),
        command=("pytest", *map(str, config.invocation_params.args)),
        wait=config.getoption("attn_wait"),
        tell=lambda text: _tell(config, text),
    )


def _tell(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and config.get_verbosity() >= 0:
        reporter.write_line(f"attnbench: {text}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measures a cell's group before the first test of it: outside pytest's capture, and charged to no test."""
    cell, door = _cell(item), item.config.stash.get(DOOR, None)
    if cell and door and door.demand:
        from bench.errors import AttnbenchError

        try:
            door.demand.record(cell)
        except AttnbenchError as error:
            pytest.exit(f"attnbench: {error}", returncode=error.exit_code)
    return (yield)


def show(cell: str, benchmark: Any, config: pytest.Config) -> None:
    """The body of the one test: shows a cell's rounds, or runs its step once where nothing is measured.

    Skips what cannot be done here. Raises CellFailed for a cell that failed.
    """
    from bench import replay

    __tracebackhide__ = True
    door = config.stash[DOOR]
    planned = door.planned(cell)
    if planned.outcome:
        pytest.skip(f"{planned.outcome}: {planned.note}")
    if door.error:
        benchmark.pedantic(replay.fail, args=(door.error,))
    elif door.demand:
        record = door.demand.record(cell)
        told = replay.extra_info(record, door.demand.protocol_of(cell), door.demand.run)
        replay.replay(benchmark, door.clock, record, told, door.demand.repeat(cell))
    else:
        from bench.measure import one_step

        replay.run_once(benchmark, one_step(planned.cell))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends the stored run, finished or not; what was measured before an interruption is kept."""
    door = session.config.stash.get(DOOR, None)
    if door is None or door.demand is None:
        return
    from bench.errors import AttnbenchError

    try:
        door.demand.close()
    except AttnbenchError as error:
        pytest.exit(f"attnbench: {error}", returncode=error.exit_code)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Adds what pytest-benchmark's own list leaves out: failed and skipped cells, companions, where it is stored."""
    door = config.stash.get(DOOR, None)
    if door is None or door.demand is None:
        return
    from bench.record import SCHEMA
    from bench.replay import without_entry

    demand = door.demand
    facts = {"schema": SCHEMA, "run": demand.run, "suite": demand.plan.suite}
    output_json["attnbench"] = {**facts, "cells": without_entry(demand.records)}


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Takes out the clock of the moment, by which a machine would differ from itself."""
    cpu = machine_info.get("cpu", {})
    for name in [name for name in cpu if name.startswith("hz_actual")]:
        del cpu[name]


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_benchmark_compare_machine_info(config: pytest.Config) -> Generator[None, object, object]:
    """Lets a comparison with another machine go on where pytest-benchmark's warning about it ends the session."""
    try:
        return (yield)
    except (ValueError, pytest.PytestWarning):  # a storage outside the current folder; warnings that are errors
        text = "the run compared with comes from another machine: its times say nothing about this one"
        config.stash.setdefault(REMARKS, []).append(text)
        return None


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Generator[None, object, object]:
    """Says where the run is stored; a regression that pytest-benchmark finds does not cut the summary short."""
    from pytest_benchmark.session import PerformanceRegression

    door, found = config.stash.get(DOOR, None), None
    remarks = config.stash.setdefault(REMARKS, [])
    try:
        found = yield
    except (PerformanceRegression, pytest.UsageError) as error:
        if door is None or door.session is None:
            raise
        regressed = isinstance(error, PerformanceRegression)
        door.session.exitstatus = pytest.ExitCode.TESTS_FAILED if regressed else pytest.ExitCode.USAGE_ERROR
        remarks.append(f"{error} {SEPARATE_RUNS if regressed else ''}".rstrip())
    if door and door.demand and door.demand.writer:
        remarks.append(f"stored in {door.demand.writer.path}")
    for text in remarks:
        terminalreporter.write_line(f"attnbench: {text}")
    return found
