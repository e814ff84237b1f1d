from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attention_impls.tests import recurrent_steps as steps
from attention_impls.tests.variant_steps import changes_nothing_before, drawn, implementation, run, with_parameters
from attention_impls.variants.recurrent.log_linear import LOG_LINEAR

FORMS = ("recurrent", "chunkwise", "chunkwise:chunk-2", "chunkwise:chunk-8", "parallel")


def stretches(i: int) -> dict[int, int]:
    """The level of every key up to i: its own, then the longest powers of two that fit, from the first key on."""
    level, first = {i: 0}, 0
    for bit in reversed(range(i.bit_length())):
        if i & (1 << bit):
            level |= dict.fromkeys(range(first, first + (1 << bit)), bit + 1)
            first += 1 << bit
    return level


def loop(call):
    out = call.q.new_zeros((*call.q.shape[:3], call.v.shape[3]))
    decay, levels = call.parameters["decay"], call.parameters["levels"]
    for b, h, i in [(b, h, i) for b in range(out.shape[0]) for h in range(out.shape[1]) for i in range(out.shape[2])]:
        g, at = h // call.group, call.mask.q_start + i
        for j, level in stretches(at).items():
            weight = call.scale * (call.q[b, h, i] @ call.k[b, g, j]) * decay[b, g, j + 1 : at + 1].sum().exp()
            out[b, h, i] += weight * levels[b, h, i, level] * call.v[b, g, j]
    return out


def test_the_stretches_of_position_six_are_four_two_and_itself() -> None:
    assert stretches(6) == {6: 0, 0: 3, 1: 3, 2: 3, 3: 3, 4: 2, 5: 2}


AXES = [*steps.AXES, {"q_len": 21, "kv_len": 21, "batch": 1, "heads": 2, "kv_heads": 1}]


@pytest.mark.parametrize("axes", AXES)
def test_matrix_and_forms_are_the_sum_over_stretches(axes: dict[str, object]) -> None:
    call = drawn(LOG_LINEAR, **axes)
    for out in (steps.definition(LOG_LINEAR, call), *(run(f"log_linear.{form}", call) for form in FORMS)):
        torch.testing.assert_close(out, loop(call), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [32, 40])
def test_it_is_log_linear_attention_against_fla(form: str, tokens: int) -> None:
    call = drawn(LOG_LINEAR, q_len=tokens, kv_len=tokens)
    made = (call.q, call.k, call.v, call.parameters["decay"], call.parameters["levels"])
    theirs = steps.fla_naive("log_linear_attn/naive").naive_log_linear_attn(*(steps.tokens_first(t) for t in made))
    torch.testing.assert_close(steps.tokens_first(run(f"log_linear.{form}", call)), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_with_equal_levels_it_is_ssd(form: str) -> None:
    call = drawn(LOG_LINEAR, q_len=40, kv_len=40, kv_heads=2)
    call = with_parameters(call, levels=torch.ones_like(call.parameters["levels"]))
    own = replace(call, parameters={"decay": call.parameters["decay"]}, axes={"decay": "B G J"})
    torch.testing.assert_close(run(f"log_linear.{form}", call), run("ssd.recurrent", own), rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [0, 3, 12])
def test_chunks_that_are_no_power_of_two_are_refused_by_a_sentence(chunk: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        implementation(f"log_linear.chunkwise:chunk-{chunk}")


def test_queries_past_the_last_key_are_refused_by_a_state_and_right_in_parallel() -> None:
    call = drawn(LOG_LINEAR, q_len=7, kv_len=5)
    assert "a key at every query" in implementation("log_linear.chunkwise").refuses(call)
    torch.testing.assert_close(run("log_linear.parallel", call), steps.definition(LOG_LINEAR, call))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mask", ["causal:bottom_right", "causal:bottom_right+padded:0.5"])
def test_decoding_from_a_cache_gives_the_last_rows_of_the_whole(rows: int, mask: str) -> None:
    steps.decodes_from_a_cache(LOG_LINEAR, mask, rows)


def test_early_queries_give_zeros_and_the_faster_oracle_is_the_matrix() -> None:
    steps.early_queries_give_zeros(LOG_LINEAR, forms=FORMS)
    steps.oracle_is_the_matrix(LOG_LINEAR)


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"log_linear.{form}", drawn(LOG_LINEAR), 4)
