from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.contract import Variant
from attention_impls.tests.score_loops import out_by_loop, weights_by_loop
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation, run

SMALL = "concat:hidden-3"
FORMS = ("pairs", "chunked", "chunked:block-2")


def variant() -> Variant:
    return catalogue.find(f"{SMALL}.pairs").variant


@pytest.mark.parametrize("mask", ["causal", "dense:0.5", "full"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_agrees_with_a_loop_over_single_elements(form: str, mask: str) -> None:
    call = drawn(variant(), mask=mask, kv_heads=2, q_len=5)
    w, score = call.parameters["w"].numpy(), call.parameters["score"].numpy()

    def logit(h: int, q: np.ndarray, k: np.ndarray) -> float:
        both = [*q, *k]
        units = [math.tanh(sum(w[h, c, a] * both[c] for c in range(8))) for a in range(3)]
        return sum(score[h, a] * units[a] for a in range(3))

    weights = weights_by_loop(call, logit)
    np.testing.assert_allclose(variant().weights(call.expanded(), torch.arange(5)).numpy(), weights, atol=1e-14)
    torch.testing.assert_close(run(f"{SMALL}.{form}", call), out_by_loop(call, weights))


@pytest.mark.parametrize("form", FORMS)
def test_cut_in_two_it_is_additive_attention_without_a_bias(form: str) -> None:
    call = drawn(variant())
    additive = catalogue.find("additive:hidden-3.broadcast").variant
    w, score = call.parameters["w"], call.parameters["score"]
    parameters = {"w_q": w[:, :4], "w_k": w[:, 4:], "score": score, "b": torch.zeros(4, 3).double()}
    same = replace(call, parameters=parameters, axes={n: p.axes for n, p in additive.parameters.items()})
    torch.testing.assert_close(run(f"{SMALL}.{form}", call), definition(additive, same))


@pytest.mark.parametrize("form", FORMS)
def test_the_log_sum_exp_is_that_of_the_definition(form: str) -> None:
    call = drawn(variant())
    lse = implementation(f"{SMALL}.{form}").prepare(call, True)(call).lse
    torch.testing.assert_close(lse, variant().lse(call, torch.arange(7)))


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"{SMALL}.{form}", drawn(variant()), 4)


def test_no_hidden_unit_is_an_error() -> None:
    with pytest.raises(ValueError, match="option hidden must be at least 1"):
        catalogue.find("concat:hidden-0.pairs")
