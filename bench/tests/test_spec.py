"""Suites and the flags that override them."""

import pytest

from bench.errors import UserError
from bench.spec import AXES, axes_of, from_data, load, override, seconds, suite_names


def test_every_suite_that_comes_along_states_its_budget_its_reason_and_a_reference():
    assert {"quick", "standard", "gpu_smoke"} <= set(suite_names())
    for name in suite_names():
        spec = load(name)
        assert spec.budget_s and spec.why and spec.reference, name
        assert all(sweep.why for sweep in spec.sweeps), name


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("3m", 180), ("1.5h", 5400), ("200ms", 0.2)])
def test_durations(text, value):
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "10", "m", "-1m", "1 day", "1m30s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UserError, match="no duration"):
        seconds(text)


def test_misspelt_words_get_the_nearest_right_one():
    with pytest.raises(UserError, match="did you mean 'quick'"):
        load("quik")
    with pytest.raises(UserError, match="did you mean 'head_dim'"):
        axes_of({"head_dims": 64})
    with pytest.raises(UserError, match="did you mean 'reference'"):
        from_data({"referense": "x"}, "s")


def test_numbers_are_checked_where_they_are_read():
    with pytest.raises(UserError, match="takes whole numbers"):
        axes_of({"q_len": "long"})
    with pytest.raises(UserError, match="at least 1"):
        axes_of({"heads": 0})
    assert axes_of({"q_len": "4_096"})["q_len"] == (4096,)


def test_a_sweep_takes_shared_axes_its_own_and_the_defaults():
    data = {"axes": {"heads": 4, "q_len": 7}, "sweep": [{"subjects": ["softmax.naive"], "q_len": [1, 2]}]}
    (sweep,) = from_data(data, "s").sweeps
    assert (sweep.axes["heads"], sweep.axes["q_len"], sweep.axes["dtype"]) == ((4,), (1, 2), (AXES["dtype"],))


def test_flags_override_axes_and_subjects_in_every_sweep():
    spec = override(load("quick"), {"q_len": ["64"], "heads": [2]}, ["softmax.naive"])
    assert all(s.axes["q_len"] == (64,) and s.axes["heads"] == (2,) for s in spec.sweeps)
    assert all(s.subjects == ("softmax.naive",) for s in spec.sweeps)
    with pytest.raises(UserError, match="did you mean 'mask'"):
        override(spec, {"masks": ["full"]})


def test_a_broken_or_missing_file_says_which(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("name = [", encoding="utf-8")
    with pytest.raises(UserError, match=r"bad\.toml is not TOML"):
        load(str(bad))
    with pytest.raises(UserError, match="no suite file"):
        load(str(tmp_path / "none.toml"))
