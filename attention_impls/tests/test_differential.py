from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.contract import Variant
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)
from attention_impls.variants.scores.differential import EPS
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("naive", "sdpa_flash")
BARE = "differential:norm-0"


def variant(name: str = BARE) -> Variant:
    return catalogue.find(f"{name}.naive").variant


def test_every_element_is_the_difference_of_two_softmax_maps() -> None:
    call = drawn(variant())
    q, k = call.q.numpy(), call.k.numpy()
    lq, lk = call.parameters["lambda_q"].numpy(), call.parameters["lambda_k"].numpy()
    weight = math.exp(lq[0] * lk[0] + lq[1] * lk[1]) - math.exp(lq[2] * lk[2] + lq[3] * lk[3]) + 0.8
    expected = np.zeros((2, 4, 7, 7))
    for b, h, i in np.ndindex(2, 4, 7):
        seen = np.arange(7) <= i
        first, second = (
            softmax_loop(np.array([sum(q[b, h, i, s] * k[b, h, j, s]) / math.sqrt(2) for j in range(7)]), seen)
            for s in (slice(0, 2), slice(2, 4))
        )
        expected[b, h, i] = first - weight * second
    np.testing.assert_allclose(variant().weights(call, torch.arange(7)).numpy(), expected, atol=1e-14)


def test_lambda_of_equal_halves_is_its_constant_part() -> None:
    call = with_parameters(
        drawn(variant(), mask="full"), lambda_q=torch.ones(4).double(), lambda_k=torch.ones(4).double()
    )
    sums = variant().weights(call, torch.arange(7)).sum(-1)
    torch.testing.assert_close(sums, torch.full_like(sums, 1 - 0.8))


@pytest.mark.parametrize("form", FORMS)
def test_lambda_of_zero_without_norm_is_softmax_of_the_first_halves(form: str) -> None:
    name = "differential:lambda_init-0.0:norm-0"
    call = with_parameters(drawn(variant(name)), lambda_q=torch.zeros(4).double())
    halves = drawn(variant(name)).map(lambda t: t)
    halves = type(halves)(call.q[..., :2], call.k[..., :2], call.v, call.mask, call.scale)
    torch.testing.assert_close(run(f"{name}.{form}", call), definition(SOFTMAX, halves))


@pytest.mark.parametrize("form", FORMS)
def test_the_norm_gives_every_row_the_same_length(form: str) -> None:
    out = run(f"differential.{form}", drawn(variant("differential")))
    torch.testing.assert_close(out.square().mean(-1).sqrt(), torch.full((2, 4, 7), 0.2).double(), rtol=0, atol=1e-2)


def test_the_norm_by_hand() -> None:
    """One key with value (3, 4): A v = (1 − λ)(3, 4), mean square 12.5 (1 − λ)²."""
    call = drawn(variant("differential"), q_len=1, kv_len=1, value_dim=2, heads=1, kv_heads=1, batch=1)
    call.v.copy_(torch.tensor([3.0, 4.0]))
    call = with_parameters(call, lambda_q=torch.zeros(4).double())
    expected = 0.2 * np.array([0.6, 0.8]) / math.sqrt(0.5 + EPS)
    np.testing.assert_allclose(run("differential.naive", call).flatten().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("value_dim", [2, 4, 6])
def test_the_fused_form_takes_values_of_whole_halves(value_dim: int) -> None:
    call = drawn(variant("differential"), value_dim=value_dim, kv_heads=2)
    torch.testing.assert_close(run("differential.sdpa_flash", call), definition(variant("differential"), call))


def test_other_value_sizes_and_odd_heads_are_refused_by_sentences() -> None:
    fused = implementation("differential.sdpa_flash")
    assert "multiple of half" in fused.refuses(drawn(variant(), value_dim=3))
    assert "two halves" in fused.refuses(drawn(variant(), head_dim=4).map(lambda t: t[..., :3]))


def test_options_that_make_no_sense_are_errors() -> None:
    with pytest.raises(ValueError, match="lambda_init must lie"):
        catalogue.find("differential:lambda_init-1.0.naive")
    with pytest.raises(ValueError, match="norm is 1"):
        catalogue.find("differential:norm-2.naive")


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"differential.{form}", drawn(variant("differential")), 4)
