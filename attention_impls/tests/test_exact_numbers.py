"""softmax.exp2, softmax.float_softmax, softmax.float_scores and softmax.lazy_rescale: other numbers, one function."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.evidence import gather
from attention_impls.mask import full_mask
from attention_impls.tests.exact_steps import MASKS, answer, drawn, has_torchs_gradients, is_softmax

FORMS = ("exp2", "float_softmax", "float_scores", "lazy_rescale:block-4", "lazy_rescale:block-1:threshold-0.0",
         "lazy_rescale:block-4:threshold-40.0")  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_value_and_log_sum_exp_are_those_summed_by_hand(form: str, mask: str) -> None:
    is_softmax(form, drawn(mask))


@pytest.mark.parametrize("mask", ["full", "aligned", "early", "packed"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_torchs_attention(form: str, mask: str) -> None:
    has_torchs_gradients(form, drawn(mask))


def seen(form: str, call: Call):
    return gather(catalogue.find(f"softmax.{form}").inner.prepare(call, False), call)


def test_powers_of_two_replace_powers_of_e() -> None:
    forward = seen("exp2", drawn()).forward
    assert forward["exp2"] == 1 and not {"exp", "_softmax", "_safe_softmax"} & set(forward)


def halves(size: float) -> Call:
    call = drawn(full_mask(64, 64), d=64, e=64)
    return replace(call, q=call.q * size, scale=1 / 8).map(lambda t: t.detach().bfloat16())


def test_a_float_softmax_leaves_the_products_in_half_precision() -> None:
    some = seen("float_softmax", halves(1.0)).dtypes
    assert some["bmm"] == {"bf16"} and some["_softmax"] == {"f32"}
    assert seen("float_scores", halves(1.0)).dtypes["bmm"] == {"f32"}


def test_rounded_scores_are_the_error_that_a_float_softmax_does_not_mend() -> None:
    """With logits of about 10, bfloat16 scores are off by 2^-6: weights by over a percent, whatever softmax follows."""
    call = halves(10.0)
    exact = answer("naive", call.map(torch.Tensor.double)).out
    errors = {form: float((answer(form, call).out.double() - exact).norm() / exact.norm()) for form in FORMS[1:3]}
    assert errors["float_scores"] < 4e-3 and errors["float_softmax"] > 1e-2


def rescalings(threshold: float, scores: list[float]) -> int:
    """How often the sums are rescaled over these scores, one key a block."""
    k = torch.tensor(scores, dtype=torch.float64).view(1, 1, -1, 1)
    call = Call(torch.ones_like(k[:, :, :1]), k, torch.ones_like(k), full_mask(1, len(scores)), 1.0)
    assert answer(f"lazy_rescale:block-1:threshold-{threshold}", call).lse.item() == pytest.approx(
        math.log(math.fsum(map(math.exp, scores))), abs=1e-13
    )
    return seen(f"lazy_rescale:block-1:threshold-{threshold}", call).forward["where"]


def test_sums_are_rescaled_only_when_the_maximum_has_grown_by_more_than_the_threshold() -> None:
    """Scores 0, 1, … 12, powers of e; 8 powers of two are 5.55 of them: rescaled at 0, 6 and 12."""
    growing = [float(n) for n in range(13)]
    assert rescalings(0.0, growing) == 13
    assert rescalings(8.0, growing) == 3
    assert rescalings(64.0, growing) == 1
    assert rescalings(0.0, growing[::-1]) == 1


def test_weights_up_to_two_to_the_threshold_cost_no_precision() -> None:
    call = replace(halves(1.0), scale=0.5).map(torch.Tensor.float)
    exact = answer("naive", call.map(torch.Tensor.double)).out
    for form in ("lazy_rescale:block-4:threshold-0.0", "lazy_rescale:block-4:threshold-20.0"):
        assert float((answer(form, call).out.double() - exact).norm() / exact.norm()) < 1e-6


@pytest.mark.parametrize("option", ["threshold--1.0", "threshold-65.0", "threshold-nan", "block-0"])
def test_an_option_without_sense_is_refused_by_name(option: str) -> None:
    with pytest.raises(ValueError, match=r"option (threshold|block) must"):
        catalogue.find(f"softmax.lazy_rescale:{option}")
