"""Verdicts from paired rounds: what passes the screen, what is confirmed, and what nobody can say."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.ab.verdict import Rules, corrected, decide, screen, signed_rank

RULES = Rules()


def noise(seed, effect=0.0, spread=0.02, pairs=4, rounds=16):
    """Log-ratios of pairs around an effect."""
    draw = random.Random(seed)
    return [[draw.gauss(math.log1p(effect), spread) for _ in range(rounds)] for _ in range(pairs)]


def verdicts(cells, fresh=None, rules=RULES, floors=None):
    return {c: decide(s, (fresh or {}).get(c, []), rules).verdict for c, s in screen(cells, rules, floors).items()}


def test_one_slow_cell_among_three_hundred_passes_the_screen():
    cells = {i: noise(i) for i in range(299)} | {299: noise(299, 0.05)}
    found = screen(cells, RULES)
    assert [i for i, s in found.items() if s.suspect] == [299]


def test_a_lone_slow_cell_needs_as_many_rounds_as_the_rules_say():
    """2^(1-R), the least p that R rounds of one sign can have, against the rate over 300 cells."""
    for rounds, passes in ((RULES.least_rounds(300) - 1, False), (RULES.least_rounds(300), True)):
        p = {0: signed_rank([0.05 + i / 1e4 for i in range(rounds)])} | dict.fromkeys(range(1, 300), 1.0)
        assert p[0] == pytest.approx(2.0 ** (1 - rounds))
        assert (corrected(p)[0] < RULES.rate) is passes


def test_the_correction_is_that_of_benjamini_and_hochberg():
    """Worked by hand: p sorted .01 .02 .03 .5 -> q = min over later ranks of p·4/rank."""
    assert corrected({5: 0.5, 6: 0.01, 7: 0.03, 8: 0.02}) == pytest.approx({5: 0.5, 6: 0.04, 7: 0.04, 8: 0.04})


def test_a_suspect_is_worse_only_when_fresh_pairs_agree():
    cells = {0: noise(1, 0.06)}
    agreeing, astray = noise(2, 0.06, pairs=5), [*noise(3, 0.06, pairs=3), *noise(4, -0.06, pairs=2)]
    one_astray = [*noise(3, 0.06, pairs=4), *noise(4, -0.06, pairs=1)]
    assert verdicts(cells, {0: agreeing}) == {0: "worse"}
    assert verdicts(cells, {0: one_astray}) == {0: "worse"}
    assert verdicts(cells, {0: astray}) == {0: "unclear"}
    assert verdicts(cells, {0: agreeing[:4]}) == {0: "unclear"}  # too few of them ran
    assert verdicts(cells, {0: noise(5, 0.01, spread=0.001, pairs=5)}) == {0: "unclear"}  # of one sign, but small


def test_a_change_below_the_threshold_is_no_finding_however_sure():
    assert verdicts({0: noise(1, 0.02, spread=0.001)}) == {0: "same"}
    assert verdicts({0: noise(1, -0.02, spread=0.001)}) == {0: "same"}


def test_a_cell_with_a_noise_floor_must_move_beyond_it():
    cells, fresh = {0: noise(1, 0.06)}, {0: noise(2, 0.06, pairs=5)}
    assert verdicts(cells, fresh, floors={0: 0.10}) == {0: "same"}
    assert verdicts(cells, fresh, floors={0: 0.04}) == {0: "worse"}


def test_a_machine_that_cannot_tell_never_says_same():
    found = screen({0: noise(1, 0.0, spread=0.3)}, RULES)[0]
    said = decide(found, [], RULES)
    assert found.resolution > RULES.threshold
    assert said.verdict == "unclear"
    assert f"this machine resolves {found.resolution:.1%} today" in said.why


def test_the_resolution_is_three_standard_errors_of_a_median():
    """1.25 sd / sqrt(n) is the standard error of a normal sample's median; 64 rounds of 2 %: 3 * 0.3125 %."""
    found = screen({0: noise(1, spread=0.02)}, RULES)[0]
    assert found.resolution == pytest.approx(3 * 1.25 * 0.02 / 8, rel=0.35)


def test_constant_samples_and_a_cell_without_rounds():
    assert signed_rank([0.0] * 20) == 1.0
    assert verdicts({0: [[0.0] * 16] * 4, 1: [[], []]}) == {0: "same"}


def test_few_rounds_have_no_interval_and_no_verdict():
    assert verdicts({0: [[0.0, 0.0, 0.001]]}) == {0: "unclear"}


samples = st.lists(
    st.lists(st.floats(-0.2, 0.2, allow_subnormal=False), min_size=8, max_size=16), min_size=2, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.integers(0, 5), samples, min_size=1, max_size=4), st.lists(samples, min_size=6, max_size=6))
def test_verdicts_are_symmetric_in_the_two_sides(cells, more):
    fresh = {i: [pair for s in more for pair in s][:5] for i in cells}

    def other(data):
        return {i: [[-x for x in pair] for pair in pairs] for i, pairs in data.items()}

    swapped = {"worse": "better", "better": "worse"}
    expected = {i: swapped.get(v, v) for i, v in verdicts(cells, fresh).items()}
    assert verdicts(other(cells), other(fresh)) == expected


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.integers(0, 5), samples, min_size=2, max_size=4))
def test_the_order_of_cells_is_irrelevant(cells):
    assert verdicts(cells) == verdicts(dict(reversed(cells.items())))
