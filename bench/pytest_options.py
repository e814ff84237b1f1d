"""What a pytest command line asks of the measuring: whether, for how long, and what is refused by name."""

from __future__ import annotations

import importlib.util
import os
import shlex
from typing import Any

import pytest

ASKING = ("only", "enable", "json", "save", "autosave", "compare", "compare_fail")  # --benchmark-… that want numbers
_PROTOCOL = "it is part of the protocol, by which runs are compared"

# Options that would change nothing, or something else than they say, because recorded rounds are replayed.
REFUSED = {
    "--benchmark-cprofile": "would profile the replay of recorded times; draw a flame graph of a cell with: "
    "attnbench profile ID",
    "--benchmark-timer": "cannot change the clock: it is the device's",
    "--benchmark-warmup": f"cannot change the warm-up: {_PROTOCOL}",
    "--benchmark-warmup-iterations": f"cannot change the warm-up: {_PROTOCOL}",
    "--benchmark-min-time": f"cannot change how long a block lasts: {_PROTOCOL}",
    "--benchmark-calibration-precision": f"cannot change how many calls make a block: {_PROTOCOL}",
    "--benchmark-confidence": "cannot be changed: --benchmark-precision is the half-width of a 95 % interval",
}


def add_options(parser: pytest.Parser) -> None:
    """Adds --attn-suite, --attn-plugin, --attn-results and --attn-wait."""
    add = parser.getgroup("attnbench", "attnbench: measuring attention").addoption
    add("--attn-suite", default="quick", metavar="NAME", help="A suite's name, or the path of a .toml file [quick].")
    add(
        "--attn-plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="Python file with IMPLEMENTATIONS; repeatable.",
    )
    add("--attn-results", metavar="DIR", help="Where runs are kept [ATTNBENCH_RESULTS, else ./results].")
    add("--attn-wait", action="store_true", help="Wait while another run is measuring on this machine.")


def wants_numbers(config: pytest.Config) -> bool:
    """True where any --benchmark-… option or --attn-results is given and none says that nothing is to be timed."""
    disabled = config.getoption("benchmark_disable") and not config.getoption("benchmark_enable")
    skipped = config.getoption("benchmark_skip") and not config.getoption("benchmark_only")
    if disabled or skipped or any(config.getoption(name) for name in ("collectonly", "setuponly", "setupplan")):
        return False
    asked = any(config.getoption(f"benchmark_{name}") for name in ASKING)
    return asked or any(word.startswith(("--benchmark-", "--attn-results")) for word in _words(config))


def given(config: pytest.Config, option: str) -> Any:
    """An option's value where somebody wrote the option, else None: a default of pytest-benchmark is no wish."""
    return config.getoption(option) if _is_written(config, option) else None


def refusal(config: pytest.Config) -> str:
    """A sentence naming what cannot be honoured while measuring; "" when all can."""
    for option, why in REFUSED.items():
        if _is_written(config, option):
            return f"{option} {why}"
    if in_parallel():
        return "attention is not measured in parallel processes, which spoil each other's times; run without -n"
    if config.getoption("benchmark_histogram") and importlib.util.find_spec("pygal") is None:
        return "--benchmark-histogram needs pygal: pip install 'pytest-benchmark[histogram]'"
    if config.getoption("benchmark_compare_fail") and not config.getoption("benchmark_compare"):
        return "--benchmark-compare-fail needs --benchmark-compare: there is nothing to compare with"
    return ""


def in_parallel() -> bool:
    """True in a worker of pytest-xdist."""
    return "PYTEST_XDIST_WORKER" in os.environ


def _words(config: pytest.Config) -> list[str]:
    """Every word of the command line, with those that the configuration and the environment add."""
    added = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    return [*map(str, config.getini("addopts")), *added, *map(str, config.invocation_params.args)]


def _is_written(config: pytest.Config, option: str) -> bool:
    return any(word == option or word.startswith(option + "=") for word in _words(config))
