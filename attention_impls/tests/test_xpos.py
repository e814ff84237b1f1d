"""xPos: the definition by a loop, x-transformers' form of it, rope as its limit, and what long inputs do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.mask import Mask
from attention_impls.tests.position_loops import weights_by_position
from attention_impls.tests.score_loops import out_by_loop, x_transformers
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation, run

KERNELS = ("naive", "tiled", "tiled:block-2")
XPOS = catalogue.find("xpos.naive").variant
CALLS = [{}, {"kv_heads": 2}, {"q_len": 3, "mask": "causal:bottom_right"}, {"mask": "padded:0.3+causal"}]


def far_apart(span: int):
    """Two queries near the last of nine keys that lie `span` positions before them; one query stands before all."""
    call = drawn(XPOS, kv_len=9, q_len=3, batch=1)
    starts = torch.tensor([[span, span - 1, -span]])
    return replace(call, mask=Mask(3, 9, causal=True, q_start=starts))


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("interleaved", "scale_base"), [(1, 512.0), (0, 512.0), (1, 4.0)])
def test_every_form_agrees_with_a_loop_over_single_elements(interleaved, scale_base, kernel: str, axes) -> None:
    name = f"xpos:interleaved-{interleaved}:scale_base-{scale_base}.{kernel}"
    variant = catalogue.find(name).variant
    call = drawn(variant, **axes)
    pairs = [(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)]

    def logit(h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        total = 0.0
        for p, (a, b) in enumerate(pairs):
            zeta, angle = (2 * p / 4 + 0.4) / 1.4, (i - j) * 10000 ** (-2 * p / 4)
            turned = complex(q[a], q[b]) * complex(k[a], -k[b]) * complex(math.cos(angle), math.sin(angle))
            total += turned.real * zeta ** ((i - j) / scale_base)
        return total / 2.0

    expected = out_by_loop(call, weights_by_position(call, logit))
    torch.testing.assert_close(definition(variant, call), expected)
    torch.testing.assert_close(run(name, call), expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_agrees_with_x_transformers(kernel: str) -> None:
    attend = x_transformers()
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    call = drawn(XPOS, head_dim=8, value_dim=8)
    freqs, scale = RotaryEmbedding(8, use_xpos=True).double().forward_from_seq_len(7)
    q, k = apply_rotary_pos_emb(call.q, freqs, scale), apply_rotary_pos_emb(call.k, freqs, 1 / scale)
    theirs = attend(q, k, call.v)[0]
    torch.testing.assert_close(run(f"xpos.{kernel}", call), theirs, rtol=1e-5, atol=1e-6)  # its rates are float32


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_scale_base_without_end_is_rope(kernel: str) -> None:
    rope = catalogue.find("rope:interleaved-1.naive").variant
    call = drawn(rope)
    torch.testing.assert_close(run(f"xpos:scale_base-1000000000000.0.{kernel}", call), definition(rope, call))


@pytest.mark.parametrize("kernel", KERNELS)
def test_moving_all_positions_and_later_tokens_change_nothing(kernel: str) -> None:
    call = drawn(XPOS)
    moved = replace(call, mask=replace(call.mask, q_start=10**6, k_start=10**6))
    torch.testing.assert_close(run(f"xpos.{kernel}", moved), run(f"xpos.{kernel}", call))
    changes_nothing_before(f"xpos.{kernel}", call, 4)


def test_tiles_stay_finite_where_one_middle_for_all_would_overflow() -> None:
    call = far_apart(10**6)
    refused = implementation("xpos.naive").refuses(call)
    assert refused is not None
    assert "overflow" in refused
    assert implementation("xpos.naive").refuses(far_apart(10**4)) is None
    single = far_apart(10**6).map(torch.Tensor.float).map(torch.Tensor.requires_grad_)
    out = run("xpos.tiled", single)
    torch.testing.assert_close(out.detach().double(), definition(XPOS, call), rtol=1e-4, atol=1e-5)
    for gradient in torch.autograd.grad(out.sum(), (single.q, single.k, single.v)):
        assert gradient.isfinite().all()
