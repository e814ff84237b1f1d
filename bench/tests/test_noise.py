"""Noise floors: kept beside the baselines, added to, and never more certain than they are."""

import json
import math
import os
import subprocess
import sys

import pytest

from bench import store
from bench.errors import CannotDo
from bench.tests.house import ROOT

CELL = "softmax.naive/b1-h2-n32-d16-f32-full/fwd/cpu1"


def noise(*ratios, alarms=()):
    sessions = tuple(store.Session(float(i), {CELL: ratio}, alarms) for i, ratio in enumerate(ratios))
    return store.Noise("quartz-2c-8g-0001", "0a1b2c3d4e5f", sessions)


def test_a_floor_is_half_as_much_again_as_nineteen_of_twenty_sessions():
    logs = [0.001 * i for i in range(1, 21)]  # of 20, the 19th is the 95 % one
    assert noise(*logs).floors()[CELL] == pytest.approx(math.expm1(1.5 * 0.019))
    assert noise(0.01, -0.03, 0.02).floors()[CELL] == pytest.approx(math.expm1(1.5 * 0.03))  # few: the largest
    assert noise().floors() == {}


def test_it_comes_back_as_it_was_and_only_for_its_protocol(tmp_path):
    kept = noise(0.01, -0.02, alarms=(CELL,))
    path = store.write_noise(tmp_path, kept)
    assert path == tmp_path / "baselines" / "quartz-2c-8g-0001.noise.json"
    assert store.read_noise(tmp_path, kept.machine, kept.protocol) == kept
    assert store.read_noise(tmp_path, kept.machine, "another").sessions == ()
    assert store.read_noise(tmp_path, "another", kept.protocol).sessions == ()
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no scratch file is left


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "protocol": "p", "sessions": [1]}',
        '{"schema": 1, "protocol": "p", "sessions": [{"at": 1, "ratios": {"a": "nan"}, "alarms": []}]}',
        '{"schema": 1, "protocol": "p", "sessions": [{"at": 1, "ratios": {"a": NaN}, "alarms": []}]}', "[" * 10**5,
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_refused_with_a_sentence(tmp_path, text):
    path = store.noise_path(tmp_path, "quartz-2c-8g-0001")
    path.parent.mkdir()
    path.write_text(text, "utf-8")
    with pytest.raises(CannotDo, match=r"calibrate again|later attnbench"):
        store.read_noise(tmp_path, "quartz-2c-8g-0001", "p")


def test_a_machine_id_that_climbs_names_no_file(tmp_path):
    with pytest.raises(CannotDo, match="cannot name a file"):
        store.read_noise(tmp_path, "../../etc/passwd", "p")


@pytest.mark.slow
def test_calibrate_keeps_each_session_and_adds_to_those_before(tmp_path):
    asked = ["calibrate", "--cell", CELL, "--sessions", "1", "--results", str(tmp_path), "--json"]
    around = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for made in (1, 2):
        done = subprocess.run([sys.executable, "-m", "bench.cli", *asked], env=around, cwd=ROOT, capture_output=True,
                              text=True, check=False, timeout=120)  # fmt: skip
        said = json.loads(done.stdout)
        assert said["sessions"] == made
        assert done.returncode == (1 if said["alarms"] else 0), done.stderr[-1000:]
        assert all(floor >= 0 for floor in said["floors"].values())
        assert CELL in said["floors"]
