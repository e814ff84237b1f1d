from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.tests.variant_steps import definition, drawn, implementation, run
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("dense", "blocked")


def sinkhorn(x: np.ndarray, iterations: int) -> np.ndarray:
    for _ in range(iterations):
        x = np.array([row / row.sum() for row in x])
        x = np.array([column / column.sum() for column in x.T]).T
    return x


def loop(call: Call, block: int, iterations: int, temperature: float) -> np.ndarray:
    """The output, token by token: keys and values matched by hand."""
    q, k, v = call.q.numpy(), call.expanded().k.numpy(), call.expanded().v.numpy()
    tokens, count = q.shape[2], math.ceil(q.shape[2] / block)
    cut = [range(n * block, min((n + 1) * block, tokens)) for n in range(count)]
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h in np.ndindex(*q.shape[:2]):
        means = [[x[b, h, list(c)].mean(0) for c in cut] for x in (q, k)]
        fit = np.array([[np.exp(sum(x * y) * call.scale / temperature) for y in means[1]] for x in means[0]])
        s = sinkhorn(fit, iterations)
        for m, own in enumerate(cut):
            matched = [
                [
                    sum(s[m, n] * x[b, h, cut[n][t]] for n in range(count) if t < len(cut[n]))
                    for t in range(min(block, tokens))
                ]
                for x in (k, v)
            ]
            keys, values = ([*x[b, h, list(own)], *y] for x, y in zip((k, v), matched, strict=True))
            for i in own:
                powers = np.exp([sum(q[b, h, i] * key) * call.scale for key in keys])
                out[b, h, i] = powers / powers.sum() @ np.array(values)
    return out


@pytest.mark.parametrize(("tokens", "block", "iterations"), [(12, 3, 2), (11, 4, 3), (5, 4, 1), (3, 4, 2)])
def test_every_row_is_softmax_over_own_and_matched_keys(tokens: int, block: int, iterations: int) -> None:
    name = f"sinkhorn:block-{block}:iterations-{iterations}:temperature-0.5."
    call = drawn(SOFTMAX, q_len=tokens, kv_len=tokens, kv_heads=2, value_dim=3, mask="full")
    expected = loop(call, block, iterations, 0.5)
    np.testing.assert_allclose(definition(implementation(name + "dense").variant, call).numpy(), expected, atol=1e-13)
    for form in FORMS:
        np.testing.assert_allclose(run(name + form, call).numpy(), expected, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", [7, 64])
def test_one_block_is_softmax(form: str, block: int) -> None:
    call = drawn(SOFTMAX, mask="full", kv_heads=2)
    torch.testing.assert_close(run(f"sinkhorn:block-{block}.{form}", call), definition(SOFTMAX, call))


def test_many_iterations_make_rows_of_the_matrix_sum_to_one_and_few_do_not() -> None:
    call = drawn(SOFTMAX, q_len=12, kv_len=12, mask="full")
    sums = {
        n: catalogue.find(f"sinkhorn:block-3:iterations-{n}.dense").variant.weights(call, torch.arange(12)).sum(-1)
        for n in (1, 200)
    }
    torch.testing.assert_close(sums[200], torch.ones_like(sums[200]))
    assert (sums[1] - 1).abs().max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_blocks_that_fit_by_far_best_are_matched_whole(form: str) -> None:
    """Queries of block m point along the keys of block m + 1, far apart: S is a permutation, values come too."""
    call = drawn(SOFTMAX, batch=1, heads=1, kv_heads=1, q_len=8, kv_len=8, mask="full")
    kinds = torch.arange(8) // 2
    axes = 30.0 * torch.eye(4, dtype=torch.float64)
    call.q[0, 0], call.k[0, 0] = axes[(kinds + 1) % 4], axes[kinds]
    wanted = call.v[0, 0].unflatten(0, (4, 2)).mean(1).roll(-1, 0)[kinds]
    torch.testing.assert_close(run(f"sinkhorn:block-2.{form}", call)[0, 0], wanted)


def test_masks_and_senseless_options_are_refused_by_a_sentence() -> None:
    assert "not defined under a causal mask" in implementation("sinkhorn.blocked").refuses(drawn(SOFTMAX))
    with pytest.raises(ValueError, match="temperature must be positive"):
        catalogue.find("sinkhorn:temperature-0.0.dense")
