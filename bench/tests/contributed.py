"""What CONTRIBUTING.md's examples are put through, in a process of its own that sees a copy of the tree.

    python -m bench.tests.contributed found|used

prints as JSON what the folders offer, or what came of using the examples.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch

import bench
from attention_impls import catalogue
from attention_impls.tests import conformance_plan as planning
from attention_impls.tests.conformance_cases import CASES
from bench import cli
from bench.devices import all_devices
from bench.metric import all_metrics
from bench.report.section import discover
from bench.spec import suite_names

CHECKED = ("square_causal", "grouped", "padded", "ragged_empty", "round")  # cases of the conformance suite
ENTRANTS = ("my_cosine.naive", "my_cosine.sdpa_flash", "softmax.my_late_division", "softmax.naive+my_sequences")
SETTING = "b2-h2-n33-d8-f32-full/fwd/cpu1"
MEASURED = (*ENTRANTS, "softmax.naive+in:my_pre_norm", "softmax.mine")
PLUGIN = "my_kernels.py"


def found() -> dict[str, object]:
    """Every name that the folders offer, by kind, and where they lie."""
    return {
        "at": str(Path(bench.__file__).parents[1]),
        "implementations": catalogue.implementations(),
        "transforms": list(catalogue.transforms()),
        "layers": list(catalogue.layers()),
        "metrics": list(all_metrics()),
        "suites": suite_names(),
        "sections": [section.title for section in discover()],
        "devices": list(all_devices()),
    }


def used() -> dict[str, object]:
    """Conformance of the entrants, one measured group, its report, the suite's plan, a plan for the device."""
    torch.set_num_threads(1)
    cells = [word for name in MEASURED for word in ("--cell", f"{name}/{SETTING}")]
    options = ["--suite", "my_decoding", "--plugin", PLUGIN, "--results", "kept", "--json"]
    return {
        "found": found(),
        "asked": {name: conform(name) for name in ENTRANTS},
        "plan": json.loads(told("plan", "--suite", "my_decoding", "--json")[1]),
        "run": json.loads(told("run", *options, *cells)[1]),
        "report": json.loads(told("report", "--results", "kept", "--json")[1]),
        "device": told("plan", "--suite", "my_decoding", "--device", "xpu"),
    }


def conform(name: str) -> int:
    """Asks everything of an entrant on some cases, raises AssertionError where it falls short; how much was asked."""
    made = planning.Plan()
    planning.ask(made, planning.entrant(name), planning.CHECKS, CHECKED)
    for asked in made.asked:
        asked.check.function(asked.entrant, CASES[asked.case])
    return len(made.asked)


def told(*words: str) -> tuple[int, str, str]:
    """One command line's exit code, answer and remarks."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run(words)
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"found": found, "used": used}[sys.argv[1]]()))
