"""KERPLE: both kernels by a loop, and the mechanisms they reduce to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import merge_by_lse
from attention_impls.tests.position_loops import weights_by_position
from attention_impls.tests.score_loops import out_by_loop
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    with_parameters,
)
from attention_impls.variants.positional.alibi import ALIBI
from attention_impls.variants.scores.softmax import SOFTMAX

KERNELS = ("naive", "tiled", "tiled:block-2")
CALLS = [{"mask": "full"}, {"kv_heads": 2}, {"q_len": 3, "mask": "causal:bottom_right"}]


def named(power: int, kernel: str):
    name = f"kerple:power-{power}.{kernel}"
    return name, catalogue.find(name).variant


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("power", [0, 1])
def test_every_form_agrees_with_a_loop_over_single_elements(power: int, kernel: str, axes: dict) -> None:
    name, variant = named(power, kernel)
    call = drawn(variant, **axes)
    r1, r2 = call.parameters["amplitude"].tolist(), call.parameters["rate"].tolist()

    def logit(h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        fall = math.pow(abs(i - j), r2[h]) if power else math.log(1 + r2[h] * abs(i - j))
        return sum(q * k) / 2.0 - r1[h] * fall

    expected = out_by_loop(call, weights_by_position(call, logit))
    torch.testing.assert_close(definition(variant, call), expected)
    torch.testing.assert_close(run(name, call), expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("power", [0, 1])
def test_an_amplitude_of_zero_is_softmax(power: int, kernel: str) -> None:
    name, variant = named(power, kernel)
    call = drawn(variant, mask="full")
    flat = with_parameters(call, amplitude=torch.zeros(4).double())
    torch.testing.assert_close(run(name, flat), definition(SOFTMAX, call))


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_power_kernel_at_rate_one_is_alibi(kernel: str) -> None:
    name, _ = named(1, kernel)
    call = drawn(ALIBI)
    own = {"amplitude": call.parameters["slopes"], "rate": torch.ones(4).double()}
    linear = replace(call, parameters=own, axes={"amplitude": "H", "rate": "H"})
    torch.testing.assert_close(run(name, linear), definition(ALIBI, call))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("power", [0, 1])
def test_later_tokens_change_nothing_before_and_halves_of_the_keys_join(power: int, kernel: str) -> None:
    name, variant = named(power, kernel)
    changes_nothing_before(name, drawn(variant), 4)
    whole, made = drawn(variant, mask="full"), implementation(name)
    parts = [made.prepare(part, True)(part) for part in (whole.keys(0, 3), whole.keys(3, 7))]
    torch.testing.assert_close(merge_by_lse([p.out for p in parts], [p.lse for p in parts])[0], run(name, whole))
