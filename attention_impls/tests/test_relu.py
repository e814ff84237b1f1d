from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.contract import Variant
from attention_impls.tests.score_loops import out_by_loop, weights_by_loop
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, implementation, run

FORMS = ("naive", "tiled", "tiled:block-2")


def variant(power: int) -> Variant:
    return catalogue.find(f"relu:power-{power}.naive").variant


@pytest.mark.parametrize("mask", ["causal", "dense:0.5", "full", "padded:0.4"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("power", [1, 2, 3])
def test_every_form_agrees_with_a_loop_over_single_elements(form: str, mask: str, power: int) -> None:
    def row(logits: np.ndarray, seen: np.ndarray) -> np.ndarray:
        return np.array([max(x, 0.0) ** power / 7 if ok else 0.0 for x, ok in zip(logits, seen, strict=True)])

    call = drawn(variant(power), mask=mask, kv_heads=2, q_len=5)
    weights = weights_by_loop(call, lambda h, q, k: sum(q * k) / 2.0, row)
    found = variant(power).weights(call.expanded(), torch.arange(5)).numpy()
    np.testing.assert_allclose(found, weights, atol=1e-7)  # 1/n is float32
    out = run(f"relu:power-{power}.{form}", call)
    torch.testing.assert_close(out, out_by_loop(call, weights), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_doubled_queries_double_the_output_and_power_two_quadruples_it(form: str) -> None:
    call = drawn(variant(1))
    double = call.map(lambda t: t)
    double.q.mul_(2.0)
    again = drawn(variant(1))
    torch.testing.assert_close(run(f"relu.{form}", double), 2.0 * run(f"relu.{form}", again))
    torch.testing.assert_close(run(f"relu:power-2.{form}", double), 4.0 * run(f"relu:power-2.{form}", again))


@pytest.mark.parametrize("form", FORMS)
def test_parts_of_the_keys_add_up_to_the_whole(form: str) -> None:
    whole, made = drawn(variant(1), mask="full"), implementation(f"relu.{form}")
    parts = [made.prepare(part, False)(part).out for part in (whole.keys(0, 3), whole.keys(3, 7))]
    torch.testing.assert_close(parts[0] + parts[1], run(made, whole))


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"relu.{form}", drawn(variant(1)), 4)


def test_a_power_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="option power must be at least 1"):
        catalogue.find("relu:power-0.naive")
