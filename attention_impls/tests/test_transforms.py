"""What is particular to each transform; that all of them keep values and gradients of everything is conformance's."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attention_impls import catalogue, inputs
from attention_impls.call import Call, hide
from attention_impls.contract import Implementation, Output, Parameter, Support, Variant, Workload
from attention_impls.evidence import gather
from attention_impls.makers import of, over, plain, softmax_of, variant_over
from attention_impls.mask import Mask
from attention_impls.needs import CPP_COMPILER
from attention_impls.variants.scores.softmax import SOFTMAX

BASE = Workload(batch=2, heads=4, kv_heads=2, q_len=37, kv_len=37, head_dim=8, value_dim=8, dtype="f64")
needs_compiler = pytest.mark.skipif(CPP_COMPILER.missing() is not None, reason="no C++ compiler here")


def wrapped(implementation: Implementation, *steps: str) -> Implementation:
    for step in steps:
        label, _, argument = step.partition(":")
        implementation = catalogue.transforms()[label].wrap(implementation, argument or None)
    return implementation


def bare(name: str = "softmax.naive") -> Implementation:
    return catalogue.find(name).bare


def drawn(variant: Variant = SOFTMAX, *, gradients: bool = False, **axes: object) -> Call:
    call = inputs.draw(variant, replace(BASE, **axes))
    for t in call.tensors():
        t.requires_grad_(gradients and t.is_floating_point())
    return call


def step(implementation: Implementation, call: Call) -> tuple[Tensor, ...]:
    """Output and gradients for a random upstream gradient."""
    out = implementation.prepare(call, False)(call).out
    upstream = inputs.draw_upstream(out)
    return out, *torch.autograd.grad(out, call.tensors(), upstream, allow_unused=True, materialize_grads=True)


def assert_same(implementation: Implementation, other: Implementation, call: Call, within: float = 1e-12) -> None:
    assert implementation.refuses(call, "fwdbwd") is None
    for got, expected in zip(step(implementation, call), step(other, call), strict=True):
        torch.testing.assert_close(got, expected, rtol=within, atol=within)


CHAINS = [
    ("query_chunks:8",),
    ("key_chunks:8",),
    ("head_chunks:2",),
    ("head_chunks:1",),
    ("recompute",),
    ("recompute", "query_chunks:8"),
    ("query_chunks:8", "recompute"),
    ("key_chunks:7", "query_chunks:5"),
    ("query_chunks:5", "key_chunks:7", "head_chunks:2"),
]
MASKS = ["full", "causal", "padded:0.5", "packed:3+causal", "dense:0.3"]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("chain", CHAINS, ids="+".join)
def test_output_and_gradients_are_those_of_the_bare_kernel(chain: tuple[str, ...], mask: str) -> None:
    assert_same(wrapped(bare(), *chain), bare(), drawn(gradients=True, mask=mask))


@pytest.mark.parametrize("chain", CHAINS[:4], ids="+".join)
def test_the_log_sum_exp_is_that_of_the_bare_kernel(chain: tuple[str, ...]) -> None:
    call = drawn(mask="causal")
    got, expected = (i.prepare(call, True)(call).lse for i in (wrapped(bare(), *chain), bare()))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_a_prepared_chain_is_right_for_other_values_of_the_same_shapes() -> None:
    first, second = (inputs.draw(SOFTMAX, replace(BASE, mask="causal"), which=n) for n in (0, 1))
    run = wrapped(bare(), "key_chunks:8", "query_chunks:8").prepare(first, False)
    torch.testing.assert_close(run(second).out, bare().prepare(second, False)(second).out)


def test_a_kernel_that_only_knows_is_causal_is_refused_under_query_chunks_with_the_part_that_it_cannot_do() -> None:
    def kernel(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    square = drawn(mask="causal", kv_heads=4)
    mine = plain(kernel, "mine")
    assert mine.refuses(square) is None
    assert wrapped(mine, "query_chunks:8").refuses(square) == (
        "its part (rows 8..16, keys 0..16) cannot be told where queries stand (aligned start)"
    )
    assert wrapped(mine, "head_chunks:2").refuses(square) is None


def test_a_part_is_run_with_the_very_mask_that_it_was_prepared_with() -> None:
    """Otherwise every run would slice the mask's tensors anew, and its bytes would be the step's."""
    same: list[bool] = []

    def prepare(call: Call, lse: bool) -> object:
        mask = call.mask

        def run(call: Call) -> Output:
            same.append(call.mask is mask)
            return Output(call.q)

        return run

    call = drawn(mask="dense:0.5")
    for chain in ("query_chunks:8", "key_chunks:8", "head_chunks:2"):
        kernel = Implementation("spy", SIGMOID, prepare)
        wrapped(kernel, chain).prepare(call, False)(call)
    assert same == [True] * (5 + 5 + 2)


def test_query_chunks_hand_a_causal_kernel_only_the_keys_it_can_see() -> None:
    seen: list[tuple[int, int]] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
        seen.append((q.shape[2], k.shape[2]))
        return q

    call = drawn(mask="causal")
    wrapped(of(SOFTMAX, spy), "query_chunks:16").prepare(call, False)(call)
    assert seen == [(16, 16), (16, 32), (5, 37)]
    seen.clear()
    wrapped(of(replace(SOFTMAX, couples=frozenset({"keys"})), spy), "query_chunks:16").prepare(call, False)(call)
    assert seen == [(16, 37), (16, 37), (5, 37)]


def test_the_order_of_transforms_is_the_order_of_the_name() -> None:
    """Cut by rows outside, each part's keys are trimmed before they are cut: 2 + 4 + 5 calls; else 5 × 3."""
    products = {}
    call = drawn(mask="causal")
    for name in ("softmax.naive+key_chunks:8+query_chunks:16", "softmax.naive+query_chunks:16+key_chunks:8"):
        inner = catalogue.find(name).inner
        assert f"softmax.{inner.name}" == name
        products[name] = gather(inner.prepare(call, False), call).forward["bmm"]
    assert list(products.values()) == [2 * 11, 2 * 15]


@pytest.mark.parametrize("chain", [("key_chunks:5",), ("query_chunks:5",), ("query_chunks:5", "key_chunks:5")])
def test_positions_stay_absolute_under_chunks(chain: tuple[str, ...]) -> None:
    """Blocks of 12 counted from the first token, cut in parts of 5."""

    def same_block(i: Tensor, j: Tensor) -> Tensor:
        return i // 12 == j // 12

    blocks = variant_over("blocks", same_block, SOFTMAX)
    (naive,) = over(blocks, same_block, bare())
    i = torch.arange(37)
    by_hand = replace(drawn(gradients=True), mask=Mask(37, 37, dense=same_block(i[:, None], i)[None, None]))
    call = replace(by_hand, mask=Mask(37, 37))
    for got, expected in zip(step(wrapped(naive, *chain), call), step(bare(), by_hand), strict=True):
        torch.testing.assert_close(got, expected)


def test_key_chunks_give_rows_without_keys_zeros_minus_infinity_and_zero_gradients() -> None:
    call = drawn(gradients=True)
    call = replace(call, mask=Mask(37, 37, key_lengths=torch.tensor([0, 20])))
    chunks = wrapped(bare(), "key_chunks:8")
    out, lse = chunks.prepare(call, True)(call)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert torch.isneginf(lse[0]).all() and torch.isfinite(lse[1]).all()
    total = (out * inputs.draw_upstream(out)).sum() + lse[1].sum()
    for gradient in torch.autograd.grad(total, call.tensors()):
        assert torch.equal(gradient[0], torch.zeros_like(gradient[0]))
        assert torch.isfinite(gradient).all()


def test_keys_join_in_float32_when_the_workload_is_half() -> None:
    """Forty running results rounded to bfloat16 each would be off by several times one rounding of the output."""

    def wide_inside(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        logits = q.float() @ k.float().mT * scale
        return (torch.softmax(logits, -1) @ v.float()).to(q.dtype), torch.logsumexp(logits, -1)

    kernel = of(SOFTMAX, wide_inside, lse_fn=wide_inside, lse="differentiable")
    half = drawn(q_len=64, kv_len=320, kv_heads=4).map(lambda t: t.bfloat16())
    got = wrapped(kernel, "key_chunks:8").prepare(half, False)(half).out
    exact = half.map(lambda t: t.double())
    right = bare().prepare(exact, False)(exact).out
    assert got.dtype == torch.bfloat16
    assert float((got.double() - right).norm() / right.norm()) < 2.0**-8


def _sigmoid(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
    return torch.sigmoid(hide(q @ k.mT * scale, mask)) @ v


SIGMOID = Variant("toy_sigmoid", weights=lambda call, rows: torch.zeros(()), join="sum")


def test_key_chunks_add_up_where_a_mechanism_joins_by_sum() -> None:
    whole = of(SIGMOID, _sigmoid)
    call = drawn(SIGMOID, gradients=True, mask="causal", kv_heads=4)
    assert_same(wrapped(whole, "key_chunks:8"), whole, call)
    assert wrapped(whole, "key_chunks:8").support.lse == "no"


@pytest.mark.parametrize(
    ("facts", "chain", "words"),
    [
        ({"couples": frozenset({"queries"})}, "query_chunks:8", "couples queries"),
        ({"couples": frozenset({"heads"})}, "head_chunks:2", "couples heads"),
        ({"join": "none"}, "key_chunks:8", "cannot be joined"),
        (
            {"couples": frozenset({"keys"}), "join": "none", "masks": frozenset({"causal"})},
            "query_chunks:8",
            "by choice",
        ),
    ],
)
def test_what_a_mechanism_couples_cannot_be_cut(facts: dict[str, object], chain: str, words: str) -> None:
    kernel = replace(bare(), variant=replace(SOFTMAX, **facts))
    assert words in str(wrapped(kernel, chain).refuses(drawn(mask="causal")))


def test_a_log_sum_exp_without_gradient_loses_the_backward_and_none_at_all_loses_key_chunks() -> None:
    call = drawn()
    for name in ("softmax.sdpa_flash", "softmax.naive"):
        chunks = wrapped(bare(name), "key_chunks:8")
        assert chunks.refuses(call, "fwd") is None
        assert (chunks.refuses(call, "fwdbwd") is None) == chunks.support.backward == (name == "softmax.naive")
    assert "does not return" in str(wrapped(bare("softmax.sdpa_math"), "key_chunks:8").refuses(call))


def test_heads_are_not_cut_through_a_group_that_shares_keys() -> None:
    call = drawn(heads=12, kv_heads=3)  # groups of 4
    answers = {n: wrapped(bare(), f"head_chunks:{n}").refuses(call) for n in (1, 2, 3, 4, 6, 8, 12)}
    assert [n for n, text in answers.items() if text] == [3, 6]
    assert "groups of 4" in str(answers[3])


@pytest.mark.parametrize("label", ["query_chunks", "key_chunks", "head_chunks"])
@pytest.mark.parametrize("argument", [None, "0", "-3", "2.5", "007", "many", "²"])
def test_a_chunk_is_a_whole_number_of_at_least_one(label: str, argument: str | None) -> None:
    with pytest.raises(ValueError, match=f"as in {label}:128"):
        catalogue.transforms()[label].wrap(bare(), argument)


@pytest.mark.parametrize(
    ("label", "argument"),
    [
        ("recompute", "2"),
        ("compiled", "fast"),
        ("cast", "f64"),
        ("cast", None),
        ("autocast", "f32"),
        ("autocast", None),
    ],
)
def test_an_argument_that_makes_no_sense_is_an_error(label: str, argument: str | None) -> None:
    with pytest.raises(ValueError, match=label):
        catalogue.transforms()[label].wrap(bare(), argument)


def test_what_would_change_nothing_is_refused_by_choice() -> None:
    assert "measure fwdbwd" in str(wrapped(bare(), "recompute").refuses(drawn(), "fwd"))
    assert "bf16 already" in str(wrapped(bare(), "cast:bf16").refuses(drawn(dtype="bf16")))
    assert "bf16 already" in str(wrapped(bare(), "autocast:bf16").refuses(drawn(dtype="bf16")))
    assert "float64" in str(wrapped(bare(), "autocast:bf16").refuses(drawn(dtype="f64")))


@pytest.mark.parametrize("chain", ["cast:bf16", "cast:f16", "autocast:bf16", "autocast:f16"])
def test_output_keeps_the_dtype_of_q_and_is_off_by_half_precision_only(chain: str) -> None:
    call = drawn(dtype="f32", mask="causal", gradients=True)
    got, right = step(wrapped(bare(), chain), call), step(bare(), call)
    for one, other in zip(got, right, strict=True):
        assert one.dtype == torch.float32
        error = float(((one - other).norm() / other.norm()).detach())
        assert 1e-5 < error < 2e-2


def test_cast_asks_the_kernel_about_the_inner_dtype() -> None:
    kernel = replace(bare(), support=Support(dtypes=frozenset({"f32"})))
    assert "does not take bf16" in str(wrapped(kernel, "cast:bf16").refuses(drawn(dtype="f32")))
    widened = wrapped(kernel, "cast:f32")
    assert widened.refuses(drawn(dtype="bf16")) is None
    assert "bf16" in widened.support.dtypes and "f32" not in widened.support.dtypes


def test_cast_leaves_parameters_alone_that_state_a_dtype_of_their_own() -> None:
    seen: dict[str, torch.dtype] = {}
    given = {"decay": Parameter("H", "constant", dtype="float32"), "bias": Parameter("H", "weight")}
    variant = softmax_of("toy", lambda call, rows: call.q[:, :, rows] @ call.k.mT, parameters=given)

    def spy(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float, **parameters: Tensor) -> Tensor:
        seen.update(q=q.dtype, **{name: p.dtype for name, p in parameters.items()})
        return q

    call = drawn(variant, dtype="f32")
    wrapped(of(variant, spy), "cast:bf16").prepare(call, False)(call)
    assert seen == {"q": torch.bfloat16, "bias": torch.bfloat16, "decay": torch.float32}


def test_the_definition_of_cast_is_the_mechanism_on_rounded_inputs_rounded_once_more() -> None:
    call = drawn(kv_heads=4)
    defined = catalogue.find("softmax.naive+cast:bf16").definition
    assert defined.output is not None
    q, k, v = (t.bfloat16().double() for t in (call.q, call.k, call.v))
    right = (torch.softmax(q @ k.mT / 8**0.5, -1) @ v).bfloat16().double()
    assert torch.equal(defined.output(call, torch.arange(37)), right)


def _applied(implementation: Implementation, label: str, **axes: object) -> tuple[bool, str]:
    call = drawn(gradients=True, **{"dtype": "f32", **axes})
    upstream = inputs.draw_upstream(call.q)
    seen, unchanged = (gather(i.prepare(call, False), call, upstream) for i in (implementation, bare()))
    proof = catalogue.transforms()[label].applied
    assert proof is not None
    assert not proof(unchanged, unchanged).ok
    return proof(seen, unchanged)


@pytest.mark.parametrize(
    "chain", ["query_chunks:8", "key_chunks:8", "head_chunks:2", "recompute", "cast:bf16", "autocast:f16"]
)
def test_a_transform_that_happened_is_proved_and_the_bare_kernel_is_not(chain: str) -> None:
    ok, text = _applied(wrapped(bare(), chain), chain.partition(":")[0])
    assert ok, text


def test_a_chunk_longer_than_the_axis_is_no_cut() -> None:
    for chain in ("query_chunks:37", "key_chunks:64", "head_chunks:4"):
        ok, text = _applied(wrapped(bare(), chain), chain.partition(":")[0])
        assert not ok
        assert "one part holds everything" in text


def test_chunks_that_never_reach_the_kernel_are_no_cut() -> None:
    honest = wrapped(bare(), "query_chunks:8")

    def whole(call: Call, lse: bool) -> object:
        cut, kernel = honest.prepare(call, lse), bare().prepare(call, lse)
        return replace(cut, run=kernel)  # keeps saying that it cuts

    ok, text = _applied(replace(honest, prepare=whole), "query_chunks")
    assert not ok
    assert "no operator ran more often" in text


def test_a_recompute_that_keeps_everything_is_not_proved_by_the_operators_of_chunks() -> None:
    for chain in (("query_chunks:8",), ("key_chunks:8",)):
        assert not _applied(wrapped(bare(), *chain), "recompute")[0]
        assert _applied(wrapped(bare(), *chain, "recompute"), "recompute")[0]
        assert _applied(wrapped(bare(), "recompute", *chain), "recompute")[0]


def test_recompute_is_proved_where_the_backward_has_every_operator_of_the_forward() -> None:
    def product(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
        return (q @ k.mT) @ (v * scale)

    call = drawn(gradients=True, kv_heads=4)
    upstream = inputs.draw_upstream(call.q)
    kernel = of(SIGMOID, product)
    plainly, again = (gather(i.prepare(call, False), call, upstream) for i in (kernel, wrapped(kernel, "recompute")))
    proof = catalogue.transforms()["recompute"].applied
    assert proof is not None
    assert proof(again, plainly).ok
    assert not proof(plainly, plainly).ok


def test_autocast_over_an_operator_that_it_does_not_know_did_not_happen() -> None:
    ok, text = _applied(wrapped(bare("softmax.sdpa_flash"), "autocast:bf16"), "autocast", kv_heads=4)
    assert not ok
    assert "no operator ran in bf16" in text
    flash = wrapped(bare("softmax.sdpa_flash"), "autocast:bf16")
    assert "autocast does not know" in str(flash.refuses(drawn(dtype="f32")))


def test_a_kernel_that_widens_its_inputs_again_was_cast_nonetheless_and_the_text_says_so() -> None:
    def wide_inside(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
        return (torch.softmax(q.float() @ k.float().mT * scale, -1) @ v.float()).to(q.dtype)

    ok, text = _applied(wrapped(of(SOFTMAX, wide_inside), "cast:bf16"), "cast", kv_heads=4)
    assert ok
    assert "computes in its own dtype" in text


@needs_compiler
def test_compiled_full_softmax_became_sdpa() -> None:
    ok, text = _applied(wrapped(bare(), "compiled"), "compiled", kv_heads=4)
    assert ok
    assert text.startswith("became SDPA (_scaled_dot_product_flash_attention_for_cpu); 1 graphs, 0 breaks")


@needs_compiler
def test_a_compilation_with_a_graph_break_did_not_happen() -> None:
    def broken(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
        weights = (q @ k.mT * scale).softmax(-1)
        torch._dynamo.graph_break()
        return weights @ v

    ok, text = _applied(wrapped(of(SOFTMAX, broken), "compiled"), "compiled", kv_heads=4)
    assert not ok
    assert re.search(r"[1-9] graphs, [1-9] breaks", text)


@needs_compiler
def test_compiled_kernels_are_right_and_neither_each_other_nor_being_watched_makes_torch_compile_again() -> None:
    calls = [drawn(gradients=True, dtype="f32", mask="causal", q_len=n, kv_len=n) for n in (21, 37)]
    made = [wrapped(bare(), "recompute", "compiled") for _ in calls]
    with torch._dynamo.config.patch(recompile_limit=1):  # as if there were more of them than torch keeps for one code
        runs = [i.prepare(call, False) for i, call in zip(made, calls, strict=True)]
    for run, call in zip(runs, calls, strict=True):
        gather(run, call, inputs.draw_upstream(call.q))
    with torch.compiler.set_stance("fail_on_recompile"):
        for run, call in zip(runs, calls, strict=True):
            ready = replace(bare(), prepare=lambda call, lse, run=run: run)
            assert_same(ready, bare(), call, within=1e-5)
            assert "CompiledFunctionBackward" in type(run(call).out.grad_fn).__name__


def test_outputs_of_wrapped_kernels_carry_no_log_sum_exp_unless_asked() -> None:
    call = drawn()
    out = wrapped(bare(), "key_chunks:8").prepare(call, False)(call)
    assert isinstance(out, Output)
    assert out.lse is None
