from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls.inputs import generator
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation, run

FORMS = ("yoso:planes-3.naive", "yoso:planes-3.blocked", "yoso:planes-3.blocked:block-2")
VARIANT = implementation(FORMS[0]).variant


def test_every_element_is_a_power_of_one_minus_the_angle_over_pi() -> None:
    call = drawn(VARIANT)
    q, k = call.q.numpy(), call.k.numpy()
    expected = np.zeros((2, 4, 7, 7))
    for b, h, i in np.ndindex(2, 4, 7):
        for j in range(i + 1):
            x, y = q[b, h, i], k[b, h, j]
            expected[b, h, i, j] = (1 - math.acos(x @ y / math.sqrt((x @ x) * (y @ y))) / math.pi) ** 3
    np.testing.assert_allclose(VARIANT.weights(call, torch.arange(7)).numpy(), expected, atol=1e-13)


def test_weights_are_the_frequency_with_which_random_hyperplanes_separate_nobody() -> None:
    call = drawn(VARIANT, batch=1, heads=1, kv_heads=1, mask="full")
    planes = torch.randn((20000, 3, 4), generator=generator("test/planes")).double()
    sides_q, sides_k = ((x[0, 0] @ planes.mT) > 0 for x in (call.q, call.k))  # [draws, tokens, 3]
    together = (sides_q[:, :, None] == sides_k[:, None]).all(-1).double().mean(0)
    found = VARIANT.weights(call, torch.arange(7))[0, 0]
    assert float((found - together).abs().max()) < 4.5 * math.sqrt(0.25 / 20000)


@pytest.mark.parametrize("name", FORMS)
def test_outputs_have_length_one_and_forms_agree(name: str) -> None:
    for mask in ("full", "causal", "dense:0.5", "packed:2"):
        call = drawn(VARIANT, mask=mask, kv_heads=2, value_dim=3)
        out = run(name, call)
        torch.testing.assert_close(out, definition(VARIANT, call))
        lengths = out.norm(dim=-1)
        assert bool(((lengths - 1).abs().lt(1e-12) | lengths.eq(0)).all())


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(VARIANT), 4)


@pytest.mark.parametrize("form", ["naive", "blocked"])
def test_many_planes_leave_only_the_key_of_the_querys_direction(form: str) -> None:
    """Others are orthogonal to the query: their weight is 2^-40."""
    name = f"yoso:planes-40.{form}"
    call = drawn(implementation(name).variant, mask="full")
    axes = torch.eye(4).double()
    k = axes[torch.tensor([1, 2, 3, 0, 2, 1, 3])]
    aligned = replace(call, q=2 * axes[:1].expand(2, 4, 7, 4), k=3 * k.expand(2, 4, 7, 4))
    wanted = torch.nn.functional.normalize(call.v[:, :, 3:4], dim=-1)
    torch.testing.assert_close(run(name, aligned), wanted.expand(-1, -1, 7, -1))
