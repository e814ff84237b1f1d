"""Short ways to write an entrant: what a user's kernel is told, and what is refused in its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attention_impls.contract import Implementation, Workload
from attention_impls.inputs import draw
from attention_impls.makers import of, of_call, over, plain, softmax_of, variant_over
from attention_impls.mask import Mask
from attention_impls.oracle import answer
from attention_impls.variants.scores.softmax import IMPLEMENTATIONS, SOFTMAX

SQUARE = Workload(batch=2, heads=4, kv_heads=4, q_len=7, kv_len=7, head_dim=4, value_dim=4, dtype="f64")
NAIVE = next(i for i in IMPLEMENTATIONS if i.name == "naive")


def bare(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v)


def causal_only(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    return sdpa(q, k, v, is_causal=is_causal)


def causal_by_short_names(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float = 1.0) -> Tensor:
    return sdpa(q, k, v, is_causal=causal, scale=softmax_scale)


def masked(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    return sdpa(q, k, v, attn_mask=attn_mask, scale=scale)


def both(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False, dropout: float = 0.0
) -> Tensor:
    if mask is not None and is_causal:
        raise ValueError("told twice")
    return sdpa(q, k, v, attn_mask=mask, is_causal=is_causal, dropout_p=dropout)


Kernel = Callable[..., Tensor]


def error(made: Implementation, workload: Workload, scale: float | None = None) -> float:
    call = draw(SOFTMAX, workload)
    call = call if scale is None else replace(call, scale=scale)
    right = answer(made.variant, call, torch.arange(workload.q_len)).out
    return float((made.prepare(call, False)(call).out - right).abs().max())


@pytest.mark.parametrize(
    ("kernel", "mask"),
    [
        (bare, "full"),
        (causal_only, "full"),
        (causal_only, "causal"),
        (causal_by_short_names, "causal"),
        (masked, "padded:0.5"),
        (masked, "causal+dense:0.5"),
        (both, "causal"),
        (both, "causal+padded:0.5"),
        (both, "full"),
    ],
)
def test_a_kernel_as_people_have_it_is_told_what_it_has_arguments_for(kernel: Kernel, mask: str) -> None:
    made = plain(kernel, "mine")
    workload = replace(SQUARE, mask=mask)
    assert made.refuses(draw(SOFTMAX, workload)) is None
    assert error(made, workload) < 1e-14


@pytest.mark.parametrize(
    ("kernel", "axes", "sentence"),
    [
        (bare, {"mask": "causal"}, "cannot be told a causal mask"),
        (bare, {"mask": "padded:0.5"}, "cannot be told a key_lengths mask"),
        (causal_only, {"mask": "causal+padded:0.5"}, "cannot be told a key_lengths mask"),
        (causal_only, {"mask": "causal:bottom_right", "kv_len": 9}, "cannot be told where queries stand"),
        (masked, {"kv_heads": 2}, "needs as many key/value heads as query heads"),
    ],
)
def test_what_a_kernel_has_no_argument_for_is_refused_by_a_sentence(
    kernel: Kernel, axes: dict[str, object], sentence: str
) -> None:
    call = draw(SOFTMAX, replace(SQUARE, **axes))  # type: ignore[arg-type]
    assert sentence in str(plain(kernel, "mine").refuses(call))


def test_a_kernel_without_a_scale_takes_only_the_default_one() -> None:
    call = draw(SOFTMAX, SQUARE)
    assert plain(bare, "mine").refuses(call) is None
    other = replace(call, scale=1.0)
    assert plain(bare, "mine").refuses(other) == "cannot be told a scale; it uses 0.5"
    assert plain(masked, "mine").refuses(other) is None
    assert error(plain(masked, "mine"), SQUARE, scale=1.0) < 1e-14


def test_a_required_argument_that_nobody_knows_is_an_error_listing_the_known() -> None:
    def odd(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        return q

    with pytest.raises(TypeError, match="mine: argument 'cu_seqlens' is not known; known: q, k, v, is_causal, causal"):
        plain(odd, "mine")


def test_facts_said_by_hand_stand_over_what_the_signature_says() -> None:
    made = plain(masked, "mine", grouped_heads=True, backward=False, source="somewhere")
    assert made.support.grouped_heads
    assert made.source == "somewhere"
    assert made.refuses(draw(SOFTMAX, SQUARE), "fwdbwd") == "has no backward"


def near(i: Tensor, j: Tensor) -> Tensor:
    return (i - j).abs() <= 2


NEAR = variant_over("near", near, SOFTMAX)


def test_over_computes_the_base_under_the_stated_pattern() -> None:
    (made,) = over(NEAR, near, NAIVE)
    call = draw(SOFTMAX, replace(SQUARE, mask="causal"))
    dense = torch.tensor([[0 <= i - j <= 2 for j in range(7)] for i in range(7)])
    right = sdpa(call.q, call.k, call.v, attn_mask=dense)
    torch.testing.assert_close(made.prepare(call, False)(call).out, right, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(answer(NEAR, call, torch.arange(7)).out, right, rtol=1e-13, atol=1e-14)
    assert made.variant is NEAR


def test_a_pattern_stays_absolute_in_a_part_of_a_call() -> None:
    (made,) = over(NEAR, near, NAIVE)
    call = draw(SOFTMAX, replace(SQUARE, mask="causal"))
    part = call.rows(4, 7)
    whole = made.prepare(call, False)(call).out[:, :, 4:]
    torch.testing.assert_close(made.prepare(part, False)(part).out, whole, rtol=1e-13, atol=1e-14)


def test_patterns_over_patterns_both_hold() -> None:
    even = variant_over("even", lambda i, j: (i - j) % 2 == 0, NEAR)
    call = draw(SOFTMAX, SQUARE)
    assert even.weights is not None
    shown = even.weights(call, torch.arange(7))[0, 0] > 0
    assert shown.tolist() == [[abs(i - j) in (0, 2) for j in range(7)] for i in range(7)]


def test_over_refuses_what_the_inner_kernel_cannot_be_told() -> None:
    (made,) = over(NEAR, near, plain(causal_only, "mine"))
    assert "pattern" in str(made.refuses(draw(SOFTMAX, SQUARE)))


def test_of_gives_a_plain_function_the_boolean_mask_and_the_parameters() -> None:
    told: list[Tensor | None] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
        told.append(mask)
        return sdpa(q, k, v, attn_mask=mask, scale=scale)

    made = of(SOFTMAX, kernel)
    assert made.name == "kernel"
    for mask in ("full", "padded:0.5"):
        assert error(made, replace(SQUARE, mask=mask)) < 1e-14
    assert told[0] is None
    assert told[1] is not None
    assert told[1].dtype == torch.bool


def test_asking_for_an_lse_that_was_not_given_is_an_error_at_prepare() -> None:
    call = draw(SOFTMAX, SQUARE)
    with pytest.raises(ValueError, match="bare cannot return the log-sum-exp"):
        of(SOFTMAX, bare).prepare(call, True)


def test_of_call_gives_the_call_with_its_mask_simplified_once() -> None:
    seen: list[Mask] = []

    def kernel(call):
        seen.append(call.mask)
        return call.v

    call = draw(SOFTMAX, replace(SQUARE, q_len=1, mask="causal:bottom_right"))
    run = of_call(SOFTMAX, kernel).prepare(call, False)
    run(call)
    run(call)
    assert seen[0].full
    assert seen[0] is seen[1]


def test_softmax_of_joins_by_lse_unless_keys_are_coupled() -> None:
    def logits(call, rows):
        return call.q[:, :, rows] @ call.k.mT

    assert softmax_of("plain", logits).join == "lse"
    assert softmax_of("coupled", logits, couples=frozenset({"keys"})).join == "none"
