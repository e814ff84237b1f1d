"""`attnbench profile` looks at a child that does nothing but the cell."""

import sys

import pytest

from bench.cli import run
from bench.loop import loop

CELL = "softmax.naive/b1-h2-n64-d16-f32-causal/fwdbwd/cpu1"


def test_the_loop_runs_the_step_until_its_time_is_over():
    assert loop(CELL, 1.0) > 10


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere py-spy needs root")
def test_a_flame_graph_shows_the_step(tmp_path, capsys):
    out = tmp_path / "flame.svg"
    assert run(["profile", CELL, "--out", str(out), "--seconds", "1"]) == 0, capsys.readouterr().err
    drawn = out.read_text(encoding="utf-8")
    assert "<svg" in drawn
    assert "kernel_step.py" in drawn or "softmax.py" in drawn
    assert str(out) in capsys.readouterr().out


def test_a_cell_that_cannot_run_is_the_users_mistake(capsys):
    assert run(["profile", "softmax.sdpa_cudnn/b1-h2-n64-d16-f32-causal/fwd/cpu1"]) == 2
    assert "runs on cuda" in capsys.readouterr().err
    assert run(["profile", CELL, "--seconds", "0"]) == 2
