"""int8 q and k against loops in numpy, integers against floats, and what smoothing helps against and what not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_impls import catalogue, inputs, judge, oracle
from attention_impls.call import Call
from attention_impls.contract import Workload
from attention_impls.evidence import gather
from attention_impls.mask import Mask
from attention_impls.tests import conformance_plan as planning
from attention_impls.tests.conformance_cases import CASES
from attention_impls.tests.conformance_checks import CHECKS
from attention_impls.variants.lowprec import fp8, int8_qk
from attention_impls.variants.scores.softmax import SOFTMAX

SMALL = Workload(batch=2, heads=4, kv_heads=2, q_len=11, kv_len=13, head_dim=8, value_dim=5, dtype="f64")
BIG = Workload(batch=1, heads=4, kv_heads=4, q_len=192, kv_len=192, head_dim=64, value_dim=64, dtype="f64")
OPTIONS = [":smooth-1", ":block-0", ":smooth-1:block-5"]  # chunks of 8 cut through blocks of 5
CHAINS = ("+query_chunks:8", "+key_chunks:8", "+head_chunks:2")
ASKED = [(f"{kernel}", "") for kernel in ("int8_qk{}.simulated", "int8_qk{}.int_mm", "fp8{}.simulated")]
ASKED += [("int8_qk{}.int_mm", chain) for chain in CHAINS]
SOME = ("square", "grouped_cross", "cross", "padded", "ragged_empty", "decode", "zero_batch", "square_causal")
FEW = ("square", "cross", "decode")


def _block(x: np.ndarray, size: int) -> np.ndarray:
    """[N, D] rounded to whole multiples of max/127, `size` rows at a time."""
    out = np.zeros_like(x)
    for lo in range(0, len(x), size):
        scale = np.abs(x[lo : lo + size]).max() / 127
        out[lo : lo + size] = np.rint(x[lo : lo + size] / scale) * scale if scale else 0.0
    return out


def _by_hand(call: Call, smooth: bool, block: int, lengths: list[int]) -> np.ndarray:
    q, k, v = (t.numpy() for t in (call.q, call.k, call.v))
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h in np.ndindex(*q.shape[:2]):
        keys = k[b, h * k.shape[1] // q.shape[1], : lengths[b]]
        keys = keys - keys.mean(0) if smooth else keys
        logits = _block(q[b, h], block or q.shape[2]) @ _block(keys, block or q.shape[2] + k.shape[2]).T * call.scale
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        out[b, h] = weights / weights.sum(-1, keepdims=True) @ v[b, h * v.shape[1] // q.shape[1], : lengths[b]]
    return out


@pytest.mark.parametrize("kernel", ["simulated", "int_mm"])
@pytest.mark.parametrize("lengths", [[13, 13], [13, 6]])
@pytest.mark.parametrize("block", [1, 4, 0])
@pytest.mark.parametrize("smooth", [0, 1])
def test_output_is_that_of_loops_over_heads_and_blocks(
    kernel: str, lengths: list[int], block: int, smooth: int
) -> None:
    implementation = next(i for i in int8_qk.implementations(smooth, block) if i.name == kernel)
    call = inputs.draw(implementation.variant, replace(SMALL, inputs="offset_channels"))
    call = replace(call, mask=Mask(11, 13, key_lengths=torch.tensor(lengths)))
    call = replace(
        call, k=call.k.masked_fill(torch.arange(13)[:, None] >= torch.tensor(lengths)[:, None, None, None], 1e4)
    )
    expected = torch.from_numpy(_by_hand(call, bool(smooth), block, lengths))
    assert implementation.refuses(call) is None
    torch.testing.assert_close(implementation.prepare(call, False)(call).out, expected, rtol=1e-10, atol=1e-12)
    rows = torch.arange(11)
    torch.testing.assert_close(oracle.answer(implementation.variant, call, rows).out, expected, rtol=1e-10, atol=1e-12)


def test_integers_are_multiplied_once_for_every_head_and_give_what_floats_give() -> None:
    floats, integers = int8_qk.implementations(1, 0)
    call = inputs.draw(floats.variant, SMALL)
    one, other = (i.prepare(call, False)(call).out for i in (floats, integers))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    seen = gather(integers.prepare(call, False), call).forward
    assert (seen["_int_mm"], seen["bmm"]) == (2 * 4, 1)  # a head of a sequence each; and A·v


def test_the_largest_products_that_int8_can_make_do_not_overflow() -> None:
    call = Call(
        torch.full((1, 1, 2, 4096), 3.0), torch.full((1, 1, 2, 4096), -3.0), torch.ones(1, 1, 2, 1), Mask(2, 2), 1.0
    )
    for implementation in int8_qk.implementations():
        lse = implementation.prepare(call, True)(call).lse
        assert lse is not None
        # both keys have the logit −9 · 4096
        torch.testing.assert_close(lse, torch.full((1, 1, 2), -9.0 * 4096 + np.log(2.0)), rtol=1e-6, atol=0.0)


def _error(name: str, kind: str) -> float:
    """Relative distance from plain attention."""
    call = inputs.draw(SOFTMAX, replace(BIG, inputs=kind))
    kernel = catalogue.find(name).inner
    with torch.no_grad():
        out = kernel.prepare(call, False)(call).out
    return judge.errors(out, oracle.answer(SOFTMAX, call, torch.arange(BIG.q_len)).out).relative


@pytest.mark.parametrize("plain", ["int8_qk.int_mm", "int8_qk:block-0.int_mm", "fp8:values-0.simulated"])
def test_smoothing_undoes_channels_that_are_moved_and_does_nothing_for_channels_that_are_large(plain: str) -> None:
    variant, _, kernel = plain.partition(".")
    smooth = f"{variant}:smooth-1.{kernel}"
    calm = _error(plain, "normal")
    assert _error(plain, "offset_channels") > 2.5 * calm
    assert _error(smooth, "offset_channels") < 1.2 * calm
    large = _error(plain, "scaled_channels")
    assert large > 1.5 * calm
    assert 0.8 * large < _error(smooth, "scaled_channels") < 1.25 * large


@pytest.mark.parametrize(
    ("name", "low", "high"), [("int8_qk.int_mm", 0.006, 0.011), ("int8_qk:block-0.int_mm", 0.009, 0.018)]
)
def test_a_scale_for_each_token_costs_one_percent_and_one_for_all_more(name: str, low: float, high: float) -> None:
    """A step of max/127, uniform rounding: (step² / 12)^½ of numbers of size 1, max about 2.4 (D = 64) or 4 of all."""
    assert low < _error(name, "normal") < high


@pytest.mark.parametrize("made", [int8_qk.implementations, fp8.implementations])
@pytest.mark.parametrize("smooth", [0, 1])
def test_gradients_are_those_of_attention_at_the_rounded_q_and_k(made: Callable[..., list], smooth: int) -> None:
    kernel = made(smooth=smooth)[0]
    call = inputs.draw(kernel.variant, replace(SMALL, kv_heads=4)).map(lambda t: t.requires_grad_())
    out = kernel.prepare(call, False)(call).out
    upstream = inputs.draw_upstream(out)
    got = torch.autograd.grad(out, [call.q, call.k, call.v], upstream)
    largest, nearest = (127.0, torch.round) if made is int8_qk.implementations else (448.0, fp8.nearest)

    def rounded(x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True) / largest
        return (nearest(x / scale) * scale).detach().requires_grad_()

    q, k = rounded(call.q), rounded(call.k - call.k.mean(2, keepdim=True) if smooth else call.k)
    v = rounded(call.v) if made is fp8.implementations else call.v.detach().requires_grad_()
    plain = torch.softmax(q @ k.mT * call.scale, -1) @ v
    for one, other in zip(got, torch.autograd.grad(plain, [q, k, v], upstream), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [f"{kernel.format(options)}{chain}" for kernel, chain in ASKED for options in OPTIONS])
def test_every_option_conforms_in_what_it_does_not_refuse(name: str) -> None:
    who, made, chained = planning.entrant(name), planning.Plan(), "+" in name
    planning.ask(made, who, CHECKS[:2] if chained else CHECKS, FEW if chained else SOME)
    assert len(made.asked) > (2 if chained else 20) or "key_chunks" in name
    for asked in made.asked:
        asked.check.function(asked.entrant, CASES[asked.case])
    refused = " ".join(made.refused[name])
    assert ("causal mask hides" in refused) != chained
    assert ("cannot be joined" in refused) == ("key_chunks" in name)
    assert ("couples queries" in refused) == ("query_chunks" in name and "block" in name)


def test_shared_numbers_are_refused_where_a_mask_hides_and_taken_where_it_hides_nothing() -> None:
    smooth = catalogue.find("int8_qk:smooth-1.int_mm").inner
    decode = inputs.draw(smooth.variant, replace(SMALL, q_len=1, mask="causal:bottom_right"))
    assert smooth.refuses(decode) is None
    for mask in ("causal", "dense:0.5"):
        call = inputs.draw(smooth.variant, replace(SMALL, q_len=13, mask=mask))
        assert "hides from them; smooth-0 with block-1 shares none" in str(smooth.refuses(call))
        assert catalogue.find("int8_qk.int_mm").inner.refuses(call) is None


def test_tokens_with_scales_of_their_own_are_cut_by_keys_with_the_same_result() -> None:
    cut, whole = (catalogue.find(f"int8_qk.int_mm{chain}").inner for chain in ("+key_chunks:4", ""))
    call = inputs.draw(whole.variant, replace(SMALL, mask="causal"))
    one, other = (i.prepare(call, False)(call).out for i in (cut, whole))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("options", [{"smooth": 2}, {"smooth": -1}, {"block": -1}])
def test_options_without_sense_are_refused(options: dict[str, int]) -> None:
    for made in (int8_qk.implementations, fp8.implementations):
        with pytest.raises(ValueError, match=f"option {next(iter(options))} must be"):
            made(**options)


def test_a_block_of_zeros_is_zeros() -> None:
    for implementation in (*int8_qk.implementations(), *fp8.implementations()):
        call = inputs.draw(implementation.variant, SMALL).map(torch.zeros_like)
        assert torch.equal(implementation.prepare(call, False)(call).out, torch.zeros(2, 4, 11, 5, dtype=torch.float64))
