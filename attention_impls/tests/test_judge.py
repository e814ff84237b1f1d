"""Errors and budgets worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from attention_impls.judge import CEILING, Errors, budget, errors, unit_roundoff

INF, NAN = math.inf, math.nan


def rows(*values: list[float]) -> torch.Tensor:
    """[1, R, size] in float64."""
    return torch.tensor([values], dtype=torch.float64)


def test_errors_are_those_worked_out_by_hand() -> None:
    found = errors(rows([3.0, 4.0], [0.0, 6.0]), rows([3.0, 4.0], [0.0, 5.0]))
    assert found.relative == pytest.approx(1 / math.sqrt(50))
    # the second row is off by rms sqrt(1/2); the head's rows have rms sqrt((12.5 + 12.5) / 2)
    assert found.worst_row == pytest.approx(math.sqrt(0.5) / math.sqrt(12.5))
    assert found.max_abs == 1.0
    assert found.nonfinite == 0


def test_the_worst_row_is_not_drowned_by_the_right_ones() -> None:
    right = torch.ones(1, 1, 1000, 4, dtype=torch.float64)
    wrong = right.clone()
    wrong[0, 0, 7] = 2.0
    found = errors(wrong, right)
    assert found.worst_row == pytest.approx(1.0)
    assert found.relative == pytest.approx(1 / math.sqrt(1000))


def test_each_head_is_measured_by_its_own_size() -> None:
    right = torch.ones(1, 2, 3, 4, dtype=torch.float64)
    right[:, 0] = 1000.0
    wrong = right.clone()
    wrong[:, 1] += 0.5
    assert errors(wrong, right).worst_row == pytest.approx(0.5)


def test_a_large_row_is_measured_by_its_own_size() -> None:
    """A key that every early query shares has a gradient far above its head's; its roundings grow with it."""
    right = torch.ones(1, 1, 10_000, 4, dtype=torch.float64)
    right[:, :, 0] = 1000.0
    assert errors(right.bfloat16(), right).worst_row <= unit_roundoff(torch.bfloat16)
    wrong = right.clone()
    wrong[:, :, 0] *= 1.01
    assert errors(wrong, right).worst_row == pytest.approx(0.01)


def test_rows_of_zeros_say_nothing_of_a_heads_size() -> None:
    right = rows([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [2.0, 2.0])
    wrong = rows([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [2.0, 3.0])
    assert errors(wrong, right).worst_row == pytest.approx(math.sqrt(0.5) / 2.0)


def test_a_head_that_is_all_zeros_is_judged_absolutely() -> None:
    right = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    assert errors(right + 0.25, right).worst_row == pytest.approx(0.25)
    assert errors(right, right).worst_row == 0.0


def test_floors_count_the_error_of_merely_rounding_the_right_answer() -> None:
    right = rows([1.0 + 2.0**-9, 1.0])  # bfloat16 has 8 bits: a quarter of a step above 1
    rounded = right.bfloat16()
    assert errors(rounded, right).floors == pytest.approx(1.0)
    twice = rounded.clone()
    twice[0, 0, 1] = 1.0 + 2.0**-7
    assert errors(twice, right).floors == pytest.approx(math.hypot(2.0**-9, 2.0**-7) / 2.0**-9)


@pytest.mark.parametrize(
    ("got", "right", "passes"),
    [
        (-INF, -INF, True),
        (INF, INF, True),
        (0.0, -INF, False),
        (-INF, 0.0, False),
        (INF, -INF, False),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (NAN, NAN, False),
    ],
)
def test_infinity_matches_only_itself_and_nan_nothing(got: float, right: float, passes: bool) -> None:
    """flashinfer-bench#429: -inf against -inf passes; finite against infinite fails; NaN anywhere fails."""
    found = errors(rows([1.0, got]), rows([1.0, right]))
    assert (found.nonfinite == 0) is passes
    assert found.worst_row == (0.0 if passes else INF)


def test_nan_and_infinite_entries_are_counted() -> None:
    assert errors(rows([NAN, 1.0, INF]), rows([1.0, 1.0, 1.0])).nonfinite == 2


def test_matching_infinities_do_not_hide_an_error_beside_them() -> None:
    assert errors(rows([-INF, 2.0]), rows([-INF, 1.0])).relative == pytest.approx(1.0)


def test_nothing_to_compare_is_no_error() -> None:
    empty = torch.zeros(0, 2, 3)
    assert errors(empty, empty.double()) == Errors(0.0, 0.0, 0.0, 0, 0.0)


def test_a_wrong_shape_is_an_error_that_names_both() -> None:
    with pytest.raises(ValueError, match=r"\(1, 2, 2\); expected \(1, 1, 2\)"):
        errors(rows([1.0, 1.0], [1.0, 1.0]), rows([1.0, 1.0]))


@pytest.mark.parametrize(
    ("dtype", "u"), [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11), (torch.float32, 2.0**-24)]
)
def test_unit_roundoff_is_half_a_step_above_one(dtype: torch.dtype, u: float) -> None:
    assert unit_roundoff(dtype) == u


def yardstick(worst_row: float) -> Errors:
    return Errors(0.0, worst_row, 0.0, 0, 0.0)


U16 = 2.0**-11


def test_the_budget_is_twice_the_yardstick_and_a_rounding_three_times_for_gradients() -> None:
    own = 3 * U16
    assert budget(yardstick(own), torch.float16) == pytest.approx(2 * own + U16)
    assert budget(yardstick(own), torch.float16, backward=True) == pytest.approx(3 * own + U16)


@pytest.mark.parametrize(("own", "continuous"), [(17 * U16, True), (3 * U16, False)])
def test_a_blunt_yardstick_is_replaced_by_one_rounding(own: float, continuous: bool) -> None:
    assert budget(yardstick(own), torch.float16, continuous=continuous) == pytest.approx(3 * U16)


def test_float32_allows_sums_in_another_order_and_grows_with_the_root_of_their_length() -> None:
    one, many = (budget(yardstick(0.0), torch.float32, keys=keys) for keys in (1, 100))
    assert many == pytest.approx(10 * one)
    assert many < 1e-4  # half precision inside, at 5e-4 and more, stays outside


def test_no_budget_is_above_the_ceiling() -> None:
    assert budget(yardstick(1.0), torch.float32) == CEILING == 0.05
