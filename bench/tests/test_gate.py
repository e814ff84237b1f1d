"""A gate's rules: what they soften, what they never touch, and files that make no sense."""

import pytest
from click.testing import CliRunner

from bench.commands import compare as compare_command
from bench.compare import Comparison, compare
from bench.errors import UserError
from bench.gate import Gate, load
from bench.record import Key
from bench.store import read_run
from bench.tests.test_compare import AFTER, BEFORE, DATA, MACHINE

CELL = "softmax.naive/b1-h4-n128-d64-f32-causal/fwd/cpu1"


def gate(tmp_path, text):
    path = tmp_path / "rules.toml"
    path.write_text(text, "utf-8")
    return load(path)


def found(verdict="worse", metric="peak_forward", ratio=1.08, cell=CELL):
    return Comparison(Key(cell, "p"), metric, 100, 108, ratio, None, verdict, "by +8 B")


def test_a_finding_within_its_threshold_is_the_same_and_beyond_it_a_finding(tmp_path):
    rules = gate(tmp_path, '[[threshold]]\ncell = "softmax.*"\nmetric = "peak_*"\nmay_move = "10%"\n')
    assert rules.judged(found()).verdict == "same"
    assert "it may move by 10.00%" in rules.judged(found()).why
    assert rules.judged(found(ratio=1.11)).verdict == "worse"
    assert rules.judged(found(metric="dispatched_ops")).verdict == "worse"
    assert rules.judged(found(cell=CELL.replace("softmax", "linear"))).verdict == "worse"
    assert rules.judged(found(ratio=None)).verdict == "worse"  # from nothing to something has no ratio


def test_the_first_threshold_that_fits_counts(tmp_path):
    text = '[[threshold]]\ncell = "softmax.naive/*"\nmay_move = "1%"\n[[threshold]]\nmay_move = "50%"\n'
    rules = gate(tmp_path, text)
    assert rules.share(CELL, "latency") == pytest.approx(0.01)
    assert rules.share("linear.chunked/x", "latency") == pytest.approx(0.5)
    assert Gate().share(CELL, "latency") is None


def test_an_accepted_change_says_why_and_only_up_to_what_was_accepted(tmp_path):
    text = f'[[accept]]\ncell = "{CELL}"\nmetric = "peak_forward"\nup_to = "10%"\nwhy = "the mask"\n'
    rules = gate(tmp_path, text)
    taken = rules.judged(found())
    assert (taken.verdict, taken.why) == ("accepted", "the mask (by +8 B)")
    assert rules.judged(found(ratio=1.2)).verdict == "worse"
    assert rules.judged(found("better", ratio=0.5)).verdict == "better"


def test_a_cell_that_broke_or_is_gone_is_no_matter_of_a_threshold_but_may_be_accepted(tmp_path):
    loose = gate(tmp_path, '[[threshold]]\nmay_move = "1000%"\n')
    taken = gate(tmp_path, '[[accept]]\nmetric = "outcome"\nwhy = "no longer offered"\n')
    for verdict in ("broke", "gone"):
        one = found(verdict, "outcome", None)
        assert loose.judged(one).verdict == verdict
        assert taken.judged(one).verdict == "accepted"


def test_a_timed_metric_is_held_to_its_own_threshold():
    before, after = (read_run(DATA / MACHINE / f"{name}.jsonl") for name in (BEFORE, AFTER))
    slow = [c for c in compare(before, after) if (c.verdict, c.metric) == ("worse", "latency")]
    assert len(slow) == 1
    loose = compare(before, after, floor_of=lambda cell, metric: 10.0 if metric == "latency" else None)
    assert [c for c in loose if (c.verdict, c.metric) == ("worse", "latency")] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "is no TOML"),
        ('[[treshold]]\nmay_move = "1%"', "did you mean 'threshold'"),
        ('[threshold]\nmay_move = "1%"', "with two brackets"),
        ('[[threshold]]\nmay_mve = "1%"', "did you mean 'may_move'"),
        ("[[threshold]]\nmay_move = 0.1", "is a text"),
        ('[[threshold]]\ncell = "a"', "needs may_move"),
        ('[[accept]]\ncell = "a"', "needs why"),
        ('[[threshold]]\nmay_move = "much"', "%"),
    ],
)
def test_a_file_that_makes_no_sense_is_the_users_mistake(tmp_path, text, said):
    with pytest.raises(UserError) as error:
        gate(tmp_path, text)
    assert said in str(error.value)
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "nowhere.toml")


def test_the_command_takes_the_file_and_its_exit_code_follows(tmp_path):
    one, two = (str(DATA / MACHINE / f"{name}.jsonl") for name in (BEFORE, AFTER))
    path = tmp_path / "rules.toml"
    path.write_text('[[accept]]\nwhy = "everything"\n', "utf-8")
    assert CliRunner().invoke(compare_command.COMMAND, [one, two]).exit_code == 1
    done = CliRunner().invoke(compare_command.COMMAND, [one, two, "--rules", str(path)])
    assert done.exit_code == 0, done.output
