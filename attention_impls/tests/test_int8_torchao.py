"""torchao's int8 against its written arithmetic, and that against a hand count; what it lists, proves and refuses."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from attention_impls import catalogue, inputs, judge, layer_subject, needs
from attention_impls.contract import Workload
from attention_impls.transforms import int8_torchao

WORKLOAD = Workload(batch=2, heads=4, kv_heads=4, q_len=33, kv_len=33, head_dim=8, value_dim=8, mask="causal")
INT8 = "softmax.naive+in:multi_head+int8_torchao"
installed = pytest.mark.skipif(int8_torchao.TRANSFORM.needs[0].missing() is not None, reason="torchao is not here")


def test_arithmetic_of_a_small_matrix_by_hand() -> None:
    """A scale for each row, max/127.5: 1/127.5 and 4/127.5; for each token 2/127.5 and 0.7/127.5. ±127.5 are ties."""
    linear = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    linear.weight.data = torch.tensor([[1.0, -0.5], [0.3, 4.0]], dtype=torch.float64)
    x = torch.tensor([[2.0, -1.0], [0.3, 0.7]], dtype=torch.float64)
    w = np.array([[127.0, -64.0], [10.0, 127.0]]) * np.array([[1.0], [4.0]]) / 127.5  # -63.75, 9.56
    a = np.array([[127.0, -64.0], [55.0, 127.0]]) * np.array([[2.0], [0.7]]) / 127.5  # -63.75, 54.64
    expected = torch.from_numpy(a @ w.T)
    assert torch.allclose(int8_torchao.Int8RowArithmetic(linear)(x), expected, rtol=1e-6)


def test_a_row_of_nothing_stays_nothing() -> None:
    assert torch.equal(int8_torchao.rounded(torch.zeros(2, 3)), torch.zeros(2, 3))


@installed
@pytest.mark.parametrize("factor", [1.0, 1e-9, 1e6])
def test_one_linear_map_is_its_arithmetic_to_float32_rounding(factor: float) -> None:
    made = inputs.generator("int8")
    linear = nn.Linear(48, 24)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(24, 48, generator=made))
        linear.weight[3] = 0.0
        linear.bias.copy_(torch.randn(24, generator=made))
    x = torch.randn(5, 7, 48, generator=made) * factor
    x[1, 2] = 0.0
    right = int8_torchao.Int8RowArithmetic(deepcopy(linear).double())(x.double())
    with torch.no_grad():
        seen = int8_torchao.TRANSFORM.wrap_layer(nn.Sequential(linear), None)(x)
    assert judge.errors(seen, right).relative < 1e-6


@installed
@pytest.mark.parametrize("inputs_of", ["normal", "outliers", "scaled_channels"])
def test_a_layer_agrees_with_its_arithmetic_and_is_some_percent_from_float64(inputs_of: str) -> None:
    """Its output projection rounds what float32 attention gave it: a few of its numbers fall the other way."""
    subject, workload = catalogue.find(INT8), replace(WORKLOAD, inputs=inputs_of)
    x = layer_subject.draw(workload)
    with torch.no_grad():
        y = layer_subject.prepare(subject, workload).run(x)
    assert judge.errors(y, layer_subject.reference(subject, workload, x).out).relative < 2e-3
    assert 3e-3 < judge.errors(y, layer_subject.reference(subject, workload, x, rounded=False).out).relative < 6e-2


@installed
def test_it_lists_the_four_modules_that_became_int8_and_proves_that_they_ran() -> None:
    x = layer_subject.draw(WORKLOAD)
    with torch.no_grad():
        prepared = layer_subject.prepare(catalogue.find(INT8), WORKLOAD)
        seen = layer_subject.gather(prepared, x)
        plain = layer_subject.prepare(catalogue.find("softmax.naive+in:multi_head"), WORKLOAD)
        unchanged = layer_subject.gather(plain, x)
    assert int8_torchao.became_int8(prepared.module) == ["q", "k", "v", "o"]
    proof = int8_torchao.TRANSFORM.applied
    assert proof is not None
    assert proof(seen, unchanged) == (True, "4 modules in int8 (q, k, v, o), 4 calls of _int_mm")
    assert not proof(unchanged, unchanged).ok
    assert not proof(replace(seen, forward=unchanged.forward), unchanged).ok


@installed
@pytest.mark.parametrize("module", [nn.Identity(), nn.MultiheadAttention(8, 2)], ids=["no_linear", "torch_own"])
def test_what_would_change_no_module_is_an_error(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"no nn\.Linear"):
        int8_torchao.TRANSFORM.wrap_layer(module, None)


@installed
def test_nothing_else_of_the_process_is_changed() -> None:
    from torch._inductor import config

    before = torch.get_float32_matmul_precision(), config.coordinate_descent_tuning, config.epilogue_fusion
    layer_subject.prepare(catalogue.find(INT8), WORKLOAD)
    assert (torch.get_float32_matmul_precision(), config.coordinate_descent_tuning, config.epilogue_fusion) == before


def test_it_refuses_backward_other_devices_other_dtypes_and_an_argument() -> None:
    subject = catalogue.find(INT8)
    assert layer_subject.refuses(subject, WORKLOAD, "fwd", "cpu") is None
    for direction in ("fwdbwd", "train"):
        assert "no backward" in str(layer_subject.refuses(subject, WORKLOAD, direction, "cpu"))
    assert "not on cuda" in str(layer_subject.refuses(subject, WORKLOAD, "fwd", "cuda"))
    assert "not in bf16" in str(layer_subject.refuses(subject, replace(WORKLOAD, dtype="bf16"), "fwd", "cpu"))
    with pytest.raises(ValueError, match="takes no argument; got 4"):
        int8_torchao.TRANSFORM.wrap_layer(nn.Sequential(nn.Linear(2, 2)), "4")


def test_without_torchao_it_is_absent_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs.importlib.util, "find_spec", lambda name: None)
    assert "torchao, not found here; try: pip install torchao" in str(catalogue.find(INT8).missing())
