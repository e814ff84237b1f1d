"""e4m3 against ml_dtypes and a list of all its numbers; the simulation against plain attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_impls import catalogue, inputs, judge, oracle
from attention_impls.contract import Workload
from attention_impls.variants.lowprec import fp8
from attention_impls.variants.scores.softmax import SOFTMAX

BIG = Workload(batch=1, heads=4, kv_heads=4, q_len=192, kv_len=192, head_dim=64, value_dim=64, dtype="f64")


def _numbers() -> list[float]:
    """All finite ones, from the format's words: sign, exponent − 7 (0: no leading 1), 3 bits; 480 is no number."""
    positive = [(m / 8) * 2.0**-6 for m in range(8)]
    positive += [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)][:-1]
    return sorted({*positive, *(-x for x in positive)})


def _between() -> Tensor:
    """Every number, every midpoint of two, and what lies just beside the midpoints, in float64."""
    numbers = torch.tensor(_numbers(), dtype=torch.float64)
    middle = (numbers[1:] + numbers[:-1]) / 2
    return torch.cat([numbers, middle, middle * (1 + 1e-6), middle * (1 - 1e-6)])


@pytest.mark.parametrize("rounded", [fp8.nearest, fp8.cast])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_takes_the_nearest_of_all_numbers_and_of_two_the_one_with_an_even_last_bit(rounded, dtype) -> None:
    x, numbers = _between().to(dtype), np.array(_numbers())
    distance = np.abs(x.double().numpy()[:, None] - numbers)
    near = distance == distance.min(1, keepdims=True)
    even = np.arange(len(numbers)) % 2 == len(numbers) // 2 % 2  # 0 is in the middle, and even
    chosen = np.where(near.sum(1, keepdims=True) > 1, near & even, near).argmax(1)
    assert np.array_equal(rounded(x).double().numpy(), numbers[chosen])


def test_rounding_is_that_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = torch.randn(4096, generator=inputs.generator("fp8")) * torch.logspace(-4, 2, 4096)
    x = x.clamp(-448, 448)
    theirs = x.numpy().astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    for rounded in (fp8.nearest, fp8.cast):
        assert np.array_equal(rounded(x).numpy(), theirs)


def test_what_lies_beyond_the_format_is_its_largest_number() -> None:
    x = torch.tensor([449.0, 463.0, 1e6, -1e6])
    for rounded in (fp8.nearest, fp8.cast):
        assert rounded(x).tolist() == [448.0, 448.0, 448.0, -448.0]


def _error(name: str) -> float:
    call = inputs.draw(SOFTMAX, BIG)
    kernel = catalogue.find(name).inner
    with torch.no_grad():
        out = kernel.prepare(call, False)(call).out
    return judge.errors(out, oracle.answer(SOFTMAX, call, torch.arange(BIG.q_len)).out).relative


def test_three_bits_of_mantissa_are_coarser_than_int8_and_rounded_values_add_their_own() -> None:
    """Rounding to 3 bits: 2^-4 at most, its root mean square about .026; q, k and v each bring it once."""
    int8, qk, qkv = (_error(name) for name in ("int8_qk.simulated", "fp8:values-0.simulated", "fp8.simulated"))
    assert 3 * int8 < qk
    assert 0.026 < qk < 0.026 * 2**0.5 * 1.2
    assert qkv == pytest.approx((qk**2 + 0.026**2) ** 0.5, rel=0.1)


def test_it_says_of_itself_that_it_is_a_simulation() -> None:
    subject = catalogue.find("fp8.simulated")
    assert "its time says nothing" in subject.variant.cost
    assert catalogue.implementations("fp8") == ["fp8.simulated"]


def test_values_are_rounded_one_scale_for_each_token() -> None:
    call = inputs.draw(SOFTMAX, replace(BIG, q_len=3, kv_len=2))
    v = call.v * torch.tensor([[1.0], [1e-4]], dtype=torch.float64)  # under one scale the second would be nearly zeros
    call = replace(call, q=torch.zeros_like(call.q), v=v)  # equal weights: the output is the mean
    scale = v.abs().amax(-1, keepdim=True) / 448
    rounded = fp8.nearest(v / scale) * scale
    seen, plain = (
        catalogue.find(f"fp8{name}.simulated").inner.prepare(call, False)(call).out for name in ("", ":values-0")
    )
    residue = 2 * seen - rounded[:, :, :1]  # what is left of the small one
    assert torch.allclose(residue, rounded[:, :, 1:].expand_as(residue), rtol=1e-6, atol=1e-12)
    assert torch.allclose(plain, v.mean(2, keepdim=True).expand_as(plain), rtol=1e-12)


def test_a_choice_about_values_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="option values must be 1"):
        fp8.implementations(values=2)
