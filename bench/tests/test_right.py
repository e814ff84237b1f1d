"""Judging: ok, imprecise and wrong, at the dtype asked for and at the widest."""

import pytest
import torch

from attention_impls import catalogue
from attention_impls.contract import Output
from attention_impls.makers import plain
from attention_impls.names import parse
from bench.cell import parse_id
from bench.protocol import Protocol
from bench.right import judge_step, working_dtype

CELL = "softmax.naive/b2-h2-n40-d16-{dtype}-causal/{direction}/cpu1"


def judged(kernel, dtype="f32", direction="fwd"):
    cell = parse_id(CELL.format(dtype=dtype, direction=direction))
    made = plain(kernel, "mine")
    subject = catalogue.Subject(parse("softmax.mine"), "plugins", made, made)
    return judge_step(subject, cell, Protocol())


def right(q, k, v, attn_mask, scale):
    logits = q @ k.mT * scale
    return torch.softmax(logits if attn_mask is None else logits.masked_fill(~attn_mask, float("-inf")), -1) @ v


def test_the_definition_itself_is_ok_in_every_dtype_and_direction():
    for dtype in ("f64", "f32", "bf16", "f16"):
        for direction in ("fwd", "fwdbwd"):
            found = judged(right, dtype, direction)
            assert found.outcome == "ok", (dtype, direction, found.note)
            assert set(found.errors) == ({"out"} if direction == "fwd" else {"out", "dq", "dk", "dv"})


@pytest.mark.parametrize("name", ["softmax.naive", "softmax.sdpa_flash", "softmax.tiles"])
def test_gradients_in_half_precision_are_ok_at_real_lengths(name):
    """The early queries' few keys have gradients far above their head's, and rounded as coarsely."""
    cell = parse_id(f"{name}/b1-h4-n1024-d64-bf16-causal/fwdbwd/cpu1")
    found = judge_step(catalogue.find(name), cell, Protocol())
    assert found.outcome == "ok", found.note


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_a_gradient_of_a_parameter_in_float32_is_held_to_float32(dtype):
    """A decay stays float32 whatever the workload's dtype; so does its gradient, which a float64 step rounds."""
    cell = parse_id(f"gated_delta.chunkwise/b1-h2-n64-d16-{dtype}-causal/fwdbwd/cpu1")
    found = judge_step(catalogue.find("gated_delta.chunkwise"), cell, Protocol())
    assert found.outcome == "ok", found.note
    assert "ddecay" in found.errors


def test_half_precision_inside_a_single_precision_kernel_is_not_this_function():
    found = judged(
        lambda q, k, v, attn_mask, scale: right(q.bfloat16(), k.bfloat16(), v.bfloat16(), attn_mask, scale).float()
    )
    assert found.outcome == "wrong"


def test_sums_kept_in_half_precision_are_imprecise_there_and_still_shown():
    def sloppy(q, k, v, attn_mask, scale):
        out = right(q, k, v, attn_mask, scale)
        return out if q.dtype != torch.bfloat16 else (out * 1.01).to(q.dtype)

    found = judged(sloppy, "bf16")
    assert found.outcome == "imprecise"
    assert "over its budget" in found.note


def test_one_percent_on_the_scale_is_caught_even_when_asked_in_half_precision():
    found = judged(lambda q, k, v, attn_mask, scale: right(q, k, v, attn_mask, scale * 1.01), "bf16")
    assert found.outcome == "wrong"
    assert "not this function" in found.note


def test_a_dropped_mask_and_a_tripled_gradient_are_wrong():
    assert judged(lambda q, k, v, attn_mask, scale: right(q, k, v, None, scale)).outcome == "wrong"

    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return 3 * g

    found = judged(lambda q, k, v, attn_mask, scale: right(Triple.apply(q), k, v, attn_mask, scale), "f32", "fwdbwd")
    assert found.outcome == "wrong"
    assert found.note.startswith("dq")


def test_a_nan_anywhere_is_wrong():
    def one_nan(q, k, v, attn_mask, scale):
        out = right(q, k, v, attn_mask, scale).clone()
        out[0, 0, 0, 0] = float("nan")
        return out

    found = judged(one_nan)
    assert found.outcome == "wrong"
    assert "not finite" in found.note


def test_the_log_sum_exp_is_judged_where_it_is_claimed():
    naive = catalogue.find("softmax.naive")
    cell = parse_id(CELL.format(dtype="f32", direction="fwd"))
    assert judge_step(naive, cell, Protocol()).errors["lse"].max_abs < 1e-5
    inner = naive.inner

    def off(call, lse):
        run = inner.prepare(call, lse)

        def shifted(call):
            out, total = run(call)
            return Output(out, None if total is None else total + 0.01)

        return shifted

    mutant = catalogue.replace(inner, prepare=off)
    found = judge_step(catalogue.Subject(naive.name, "x", mutant, mutant), cell, Protocol())
    assert found.outcome == "wrong"
    assert "lse" in found.note


def test_a_transform_that_rounds_is_held_to_the_dtype_it_rounds_to_and_its_distance_is_told():
    subject = catalogue.find("softmax.naive+cast:bf16")
    cell = parse_id("softmax.naive+cast:bf16/b2-h2-n40-d16-f32-causal/fwd/cpu1")
    assert working_dtype(subject, cell) is torch.bfloat16
    found = judge_step(subject, cell, Protocol())
    assert found.outcome == "ok", found.note
    assert 1e-4 < found.distance < 2e-2


def test_an_approximation_is_held_to_its_own_definition_and_its_distance_is_told():
    subject = catalogue.find("performer.quadratic")
    cell = parse_id("performer.quadratic/b1-h2-n40-d16-f32-full/fwd/cpu1")
    found = judge_step(subject, cell, Protocol())
    assert found.outcome == "ok", found.note
    assert found.distance > 1e-2
