"""Rotary positions: the definition, both layouts against other people's code, and what rotations must not change."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.position_loops import weights_by_position
from attention_impls.tests.score_loops import out_by_loop
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run
from attention_impls.variants.positional.rope import rotation
from attention_impls.variants.scores.softmax import SOFTMAX

KERNELS = ("naive", "complex", "sdpa_flash", "tiled", "tiled:block-2")
ROPE = catalogue.find("rope.naive").variant
CALLS = [
    {"mask": "full"},
    {"kv_heads": 2},
    {"q_len": 3, "mask": "causal:bottom_right"},
    {"q_len": 5, "mask": "full", "head_dim": 6, "value_dim": 6},
]


def units(positions: int, head_dim: int, base: float = 10000.0) -> torch.Tensor:
    angles = [[t * base ** (-2 * p / head_dim) for p in range(head_dim // 2)] for t in range(positions)]
    return torch.polar(torch.ones(positions, head_dim // 2).double(), torch.tensor(angles).double())


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("interleaved", "base"), [(0, 10000.0), (1, 10000.0), (1, 50.0)])
def test_every_form_agrees_with_a_loop_over_single_elements(interleaved: int, base: float, kernel: str, axes) -> None:
    name = f"rope:interleaved-{interleaved}:base-{base}.{kernel}"
    variant = catalogue.find(name).variant
    call = drawn(variant, **axes)
    size = call.q.shape[3]
    pairs = [(2 * p, 2 * p + 1) if interleaved else (p, p + size // 2) for p in range(size // 2)]

    def turned(x: np.ndarray, t: int) -> list[complex]:
        return [complex(x[a], x[b]) * np.exp(1j * t * base ** (-2 * p / size)) for p, (a, b) in enumerate(pairs)]

    def logit(h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        products = (x * y.conjugate() for x, y in zip(turned(q, i), turned(k, j), strict=True))
        return sum(z.real for z in products) / math.sqrt(size)

    expected = out_by_loop(call, weights_by_position(call, logit))
    torch.testing.assert_close(definition(variant, call), expected)
    torch.testing.assert_close(run(name, call), expected)


def test_neighbouring_pairs_turn_as_rotary_embedding_torch_turns_them() -> None:
    library = pytest.importorskip("rotary_embedding_torch")
    x = drawn(SOFTMAX, head_dim=8).q
    theirs = library.RotaryEmbedding(dim=8).double().rotate_queries_or_keys(x)
    torch.testing.assert_close(rotation(True)(x, units(7, 8)), theirs, rtol=1e-5, atol=1e-6)  # its angles are float32


@pytest.mark.parametrize("interleaved", [0, 1])
def test_both_layouts_turn_as_onnx_turns_them(interleaved: int) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    names, float64 = ["x", "cos", "sin"], onnx.TensorProto.DOUBLE
    node = onnx.helper.make_node("RotaryEmbedding", names, ["y"], interleaved=interleaved)
    told = [onnx.helper.make_tensor_value_info(name, float64, None) for name in names]
    made = onnx.helper.make_tensor_value_info("y", float64, None)
    opset = [onnx.helper.make_opsetid("", 23)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", told, [made]), opset_imports=opset)
    x, turn = drawn(SOFTMAX, head_dim=8).q, units(7, 8)
    tables = (t.expand(2, 7, 4).numpy() for t in (turn.real, turn.imag))
    theirs = ReferenceEvaluator(model).run(None, dict(zip(names, (x.numpy(), *tables), strict=True)))[0]
    torch.testing.assert_close(rotation(bool(interleaved))(x, turn), torch.from_numpy(theirs))


@pytest.mark.parametrize("kernel", KERNELS)
def test_moving_all_positions_changes_nothing_and_one_position_for_all_is_softmax(kernel: str) -> None:
    call = drawn(ROPE, mask="full")
    moved = replace(call, mask=replace(call.mask, q_start=1000, k_start=1000))
    torch.testing.assert_close(run(f"rope.{kernel}", moved), run(f"rope.{kernel}", call))
    one = call.rows(2, 3).keys(2, 3)
    torch.testing.assert_close(run(f"rope.{kernel}", one), definition(SOFTMAX, one))
    farther = replace(call, mask=replace(call.mask, q_start=3))
    assert not torch.allclose(run(f"rope.{kernel}", farther), run(f"rope.{kernel}", call))


@pytest.mark.parametrize("kernel", KERNELS)
def test_later_tokens_change_nothing_before(kernel: str) -> None:
    changes_nothing_before(f"rope.{kernel}", drawn(ROPE), 4)


def test_far_tokens_keep_their_angles_in_float32() -> None:
    """A million tokens on, angles counted in float32 are off by up to 0.06."""
    call = drawn(ROPE, mask="full")
    far = replace(call, mask=replace(call.mask, q_start=10**6, k_start=10**6))
    single = far.map(torch.Tensor.float)
    torch.testing.assert_close(run("rope.naive", single).double(), definition(ROPE, far), rtol=1e-4, atol=1e-5)
