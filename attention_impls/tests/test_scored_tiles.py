"""The tiles' backward against finite differences, which know nothing of its formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attention_impls import catalogue
from attention_impls.contract import Parameter
from attention_impls.makers import softmax_of
from attention_impls.scored import dot
from attention_impls.scored_tiles import tiled
from attention_impls.tests.variant_steps import drawn, implementation, run

NAMES = ("softcap", "cosine", "qk_norm", "qk_rmsnorm", "l2_distance", "sigmoid", "relu:power-2", "sink")


@pytest.mark.parametrize("mask", ["causal", "dense:0.3", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_everything_learned_agree_with_finite_differences(name: str, mask: str) -> None:
    made = implementation(f"{name}.tiled:block-2")
    call = drawn(made.variant, mask=mask, q_len=4, kv_len=5, heads=2, kv_heads=1, batch=1, head_dim=3, value_dim=2)
    learned = [n for n, p in made.variant.parameters.items() if p.learned]

    def outputs(q: Tensor, k: Tensor, v: Tensor, *own: Tensor) -> tuple[Tensor, ...]:
        given = {**call.parameters, **dict(zip(learned, own, strict=True))}
        out, lse = made.prepare(call, made.support.lse != "no")(replace(call, q=q, k=k, v=v, parameters=given))
        return (out,) if lse is None else (out, lse.nan_to_num(neginf=0.0))

    inputs = [call.q, call.k, call.v, *(call.parameters[n] for n in learned)]
    assert torch.autograd.gradcheck(outputs, [t.clone().requires_grad_() for t in inputs], fast_mode=False)


@pytest.mark.parametrize("name", ["softcap", "sigmoid"])
@pytest.mark.parametrize("alone", ["q", "k", "v"])
def test_one_input_alone_gets_the_gradient_it_gets_among_others(name: str, alone: str) -> None:
    call = drawn(catalogue.find(f"{name}.naive").variant, kv_heads=2)

    def gradient(names: str) -> Tensor:
        leaves = {n: getattr(call, n).clone().requires_grad_() for n in names}
        out = run(f"{name}.tiled:block-2", replace(call, **leaves))
        return torch.autograd.grad(out.square().sum(), leaves[alone])[0]

    torch.testing.assert_close(gradient(alone), gradient("qkv"), rtol=0, atol=0)


def test_half_precision_sums_in_float32() -> None:
    """A thousand keys that weigh the same, values of 1: a sum in bfloat16 would stay at 256."""
    variant = catalogue.find("sigmoid.naive").variant
    call = drawn(variant, q_len=1, kv_len=1000, heads=1, kv_heads=1, batch=1, mask="full").map(Tensor.bfloat16)
    call.q.zero_(), call.v.fill_(1.0)
    torch.testing.assert_close(
        run("sigmoid.tiled", call).float(), torch.full((1, 1, 1, 4), 1000 / 1001), rtol=4e-3, atol=0
    )


def test_a_learned_parameter_that_tiles_would_cut_is_an_error() -> None:
    biased = softmax_of("biased", lambda call, rows: call.q, parameters={"bias": Parameter("H J", "weight")})
    with pytest.raises(ValueError, match="would cut its learned parameter 'bias'"):
        tiled(biased, dot)


def test_a_block_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="option block must be at least 1"):
        catalogue.find("softcap.tiled:block-0")
