from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls.tests.score_loops import out_by_loop, weights_by_loop
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.scores.qk_norm import QK_NORM
from attention_impls.variants.scores.qk_rmsnorm import QK_RMSNORM

FORMS = ("qk_rmsnorm.naive", "qk_rmsnorm.tiled", "qk_rmsnorm.tiled:block-2", "qk_rmsnorm.sdpa_flash")


def normed(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return gain * x / math.sqrt(sum(x * x) / len(x) + 1e-6)


@pytest.mark.parametrize("mask", ["causal", "dense:0.5", "full"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_a_loop_over_single_elements(name: str, mask: str) -> None:
    call = drawn(QK_RMSNORM, mask=mask, kv_heads=2, q_len=5)
    gain_q, gain_k = (call.parameters[n].numpy() for n in ("gain_q", "gain_k"))
    weights = weights_by_loop(call, lambda h, q, k: sum(normed(q, gain_q) * normed(k, gain_k)) / 2.0)
    np.testing.assert_allclose(QK_RMSNORM.weights(call.expanded(), torch.arange(5)).numpy(), weights, atol=1e-13)
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights))


@pytest.mark.parametrize("name", FORMS)
def test_gains_of_one_are_qk_norm_with_g_the_root_of_the_head_size(name: str) -> None:
    """scale · D · q̂·k̂ = sqrt(D) q̂·k̂; what remains is the 1e-6 under the root."""
    call = drawn(QK_RMSNORM)
    flat = with_parameters(call, gain_q=torch.ones(4).double(), gain_k=torch.ones(4).double())
    unit = with_parameters(drawn(QK_NORM), g=torch.tensor(2.0).double())
    torch.testing.assert_close(run(name, flat), definition(QK_NORM, unit), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(QK_RMSNORM), 4)
