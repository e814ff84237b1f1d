from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import hide
from attention_impls.contract import Variant
from attention_impls.tests.score_loops import out_by_loop, seen_by_loop, weights_by_loop
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run
from attention_impls.variants.scores.softmax import SOFTMAX

entmax = pytest.importorskip("entmax")

KERNELS = ("entmax.sorted", "entmax:alpha-1.5.sorted", "entmax15.sorted")
TANGENTS = (
    "entmax.bisection",
    "entmax.bisection:block-2",
    "entmax:alpha-1.5.bisection",
    "entmax15.bisection",
    "entmax:alpha-1.2.bisection",
    "entmax:alpha-1.0.bisection",
)
FORMS = (*KERNELS, *TANGENTS)
ALPHA = {"entmax": 2.0, "entmax:alpha-1.5": 1.5, "entmax15": 1.5, "entmax:alpha-1.2": 1.2, "entmax:alpha-1.0": 1.0}


def stem(name: str) -> str:
    return name.replace(".sorted", "/").replace(".bisection", "/").partition("/")[0]


def variant(name: str) -> Variant:
    return catalogue.find(name).variant


def projected(logits: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex, by trying every number of largest keys as the support."""
    weights = np.zeros(len(logits))
    order = sorted(np.flatnonzero(seen), key=lambda j: -logits[j])
    for k in range(len(order), 0, -1):
        tau = (sum(logits[j] for j in order[:k]) - 1) / k
        if all(logits[j] > tau for j in order[:k]):
            weights[order[:k]] = [logits[j] - tau for j in order[:k]]
            return weights
    return weights


@pytest.mark.parametrize("mask", ["causal", "dense:0.3", "full"])
@pytest.mark.parametrize("name", ["entmax.sorted", "entmax.bisection", "entmax.bisection:block-2"])
def test_the_default_is_the_projection_onto_the_simplex_by_a_loop(name: str, mask: str) -> None:
    call = drawn(variant(name), mask=mask, kv_heads=2, q_len=5)
    weights = weights_by_loop(call, lambda h, q, k: sum(q * k) / 2.0, projected)
    np.testing.assert_allclose(variant(name).weights(call.expanded(), torch.arange(5)).numpy(), weights, atol=1e-13)
    torch.testing.assert_close(run(name, call), out_by_loop(call, weights), rtol=0, atol=1e-12)


def theirs(alpha: float, logits: torch.Tensor) -> torch.Tensor:
    if alpha == 1.0:
        return torch.softmax(logits, -1)
    exact = {2.0: entmax.sparsemax, 1.5: entmax.entmax15}.get(alpha)
    return exact(logits, -1) if exact else entmax.entmax_bisect(logits, alpha, -1, n_iter=60)


@pytest.mark.parametrize("name", FORMS)
def test_output_and_gradients_agree_with_the_entmax_package(name: str) -> None:
    call = drawn(variant(name), q_len=9, kv_len=9).map(lambda t: (2 * t).requires_grad_())
    logits = hide(call.q @ call.k.mT / 2.0, torch.from_numpy(seen_by_loop(call)))
    right = theirs(ALPHA[stem(name)], logits) @ call.v
    out, upstream = run(name, call), torch.cos(torch.arange(right.numel()).double()).view(right.shape)
    torch.testing.assert_close(out, right, rtol=0, atol=1e-10)
    inputs = [call.q, call.k, call.v]
    wanted = torch.autograd.grad(right, inputs, upstream)
    for one, other in zip(torch.autograd.grad(out, inputs, upstream), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", FORMS)
def test_rows_sum_to_one_and_far_keys_weigh_exactly_nothing(name: str) -> None:
    call = drawn(variant(name), mask="full", value_dim=7)
    call.q.mul_(4.0)
    call.v.copy_(torch.eye(7))
    weights = run(name, call)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]).double())
    assert bool((weights == 0).any()) == (ALPHA[stem(name)] > 1.0)


def test_alpha_one_is_softmax_and_alpha_near_it_is_near() -> None:
    call = drawn(variant("entmax.sorted"))
    exact = definition(SOFTMAX, call)
    torch.testing.assert_close(run("entmax:alpha-1.0.bisection", call), exact)
    far, near = (float((run(f"entmax:alpha-{a}.bisection", call) - exact).abs().max()) for a in (1.001, 1.0001))
    assert near < 5e-4 and far / near == pytest.approx(10, rel=0.05)  # an error of first order in alpha - 1
    torch.testing.assert_close(definition(variant("entmax:alpha-1.0.bisection"), call), exact)


def test_two_keys_worked_by_hand() -> None:
    """Logits 0.3 and 0: sparsemax halves what is left, (0.65, 0.35); 1.5-entmax below."""
    call = drawn(variant("entmax.sorted"), q_len=1, kv_len=2, heads=1, kv_heads=1, batch=1, value_dim=2, mask="full")
    call.q.fill_(1.0), call.v.copy_(torch.eye(2))
    call.k.copy_(torch.tensor([[0.15], [0.0]]).expand(2, 4))  # q·k / 2 = 0.3
    for name in ("entmax.sorted", "entmax.bisection"):
        torch.testing.assert_close(run(name, call)[0, 0, 0], torch.tensor([0.65, 0.35]).double())
    # halves differ by 0.15: (m + 0.075)² + (m − 0.075)² = 1
    m = ((1 - 2 * 0.075**2) / 2) ** 0.5
    right = torch.tensor([(m + 0.075) ** 2, (m - 0.075) ** 2]).double()
    for name in ("entmax15.sorted", "entmax15.bisection"):
        torch.testing.assert_close(run(name, call)[0, 0, 0], right, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(variant(name)), 4)


@pytest.mark.parametrize("alpha", ["0.9", "2.5", "nan"])
def test_an_alpha_that_makes_no_sense_is_an_error(alpha: str) -> None:
    with pytest.raises(ValueError, match="alpha of entmax must lie"):
        catalogue.find(f"entmax:alpha-{alpha}.bisection")
