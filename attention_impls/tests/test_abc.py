from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.tests.fla_by_path import naive
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)

NAME = "abc:slots-3"
VARIANT = implementation(f"{NAME}.blocked").variant
CAUSAL = ("blocked", "blocked:block-3", "chunked", "chunked:chunk-1", "chunked:chunk-3")
FULL = ("blocked", "materialised", "factored")


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_every_element_goes_through_slots_written_by_what_it_sees(mask: str) -> None:
    call = drawn(VARIANT, mask=mask, q_len=5, kv_len=5)
    q, k, control = call.q.numpy(), call.k.numpy(), call.parameters["control"].numpy()
    expected = np.zeros((2, 4, 5, 5))
    for b, h, i in np.ndindex(2, 4, 5):
        seen = np.array([mask == "full" or j <= i for j in range(5)])
        writes = [softmax_loop(control[b, h, :, s], seen) for s in range(3)]
        slots = [sum(writes[s][j] * k[b, h, j] for j in range(5)) for s in range(3)]
        reads = softmax_loop(np.array([q[b, h, i] @ slot / 2 for slot in slots]), np.ones(3, bool))
        expected[b, h, i] = sum(reads[s] * writes[s] for s in range(3))
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(5)).numpy(), expected, atol=1e-14)


STARTS = (
    (11, 11, "causal+padded:0.4"),
    (4, 11, "causal:bottom_right"),
    (7, 4, "causal:bottom_right"),
    (7, 3, "causal"),
)


@pytest.mark.parametrize("form", CAUSAL)
def test_causal_forms_agree_from_any_start_and_later_tokens_change_nothing_before(form: str) -> None:
    for q_len, kv_len, mask in STARTS:
        call = drawn(VARIANT, kv_heads=2, q_len=q_len, kv_len=kv_len, mask=mask, value_dim=5)
        torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call))
    changes_nothing_before(f"{NAME}.{form}", drawn(VARIANT), 4)


@pytest.mark.parametrize("form", FULL)
def test_forms_that_see_all_keys_agree(form: str) -> None:
    call = drawn(VARIANT, mask="padded:0.4", q_len=5, kv_len=11, kv_heads=2)
    torch.testing.assert_close(run(f"{NAME}.{form}", call), definition(VARIANT, call))


@pytest.mark.parametrize("form", FULL)
def test_control_of_keys_by_learned_queries_gives_luna(form: str) -> None:
    luna = implementation("luna:packed-3.factored")
    call = drawn(luna.variant, mask="full")
    control = 0.5 * call.k @ call.parameters["p"].mT  # scale · p·k
    own = replace(call, parameters={"control": control}, axes={"control": "B G J S"})
    torch.testing.assert_close(run(f"{NAME}.{form}", own), definition(luna.variant, call))


def test_a_query_after_a_cache_gives_the_last_row_of_the_whole() -> None:
    made = implementation(f"{NAME}.chunked")
    whole = drawn(VARIANT, q_len=9, kv_len=9, kv_heads=2)
    assert made.prefill is not None and made.resume is not None
    for first in (0, 1, 6, 8):
        part = whole.rows(first, 9)
        torch.testing.assert_close(made.resume(part, made.prefill(part)).out, run(made, whole)[:, :, first:])


@pytest.mark.parametrize("form", CAUSAL)
def test_against_the_recurrence_of_flash_linear_attention(form: str) -> None:
    """It computes in float32."""
    call = drawn(VARIANT, q_len=11, kv_len=11)
    expected, _ = naive("abc").naive_recurrent_abc(call.q, call.k, call.v, call.parameters["control"])
    torch.testing.assert_close(run(f"{NAME}.{form}", call), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", CAUSAL)
def test_huge_control_of_the_future_moves_no_earlier_row_in_float32(form: str) -> None:
    call = drawn(VARIANT).map(torch.Tensor.float)
    control = call.parameters["control"].clone()
    control[:, :, 5] = 1e4
    found = run(f"{NAME}.{form}", with_parameters(call, control=control))[:, :, :5]
    torch.testing.assert_close(found, run(f"{NAME}.{form}", call)[:, :, :5], rtol=0, atol=1e-6)


def test_what_the_chunked_form_holds_grows_with_the_length_and_not_with_its_square() -> None:
    def held(n: int) -> int:
        call, sizes = drawn(VARIANT, q_len=n, kv_len=n).map(lambda t: t.requires_grad_()), []
        made = implementation(f"{NAME}.chunked").prepare(call, False)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            made(call)
        return sum(sizes)

    assert held(128) / held(64) == pytest.approx(2.0, rel=0.1)
