from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.tests.variant_steps import definition, drawn, implementation, run, softmax_loop, with_parameters
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("dense", "clustered")
CALLS = [
    {"mask": "full"},
    {"mask": "causal", "kv_heads": 2},
    {"mask": "padded:0.5", "q_len": 9},
    {"mask": "packed:2+causal"},
    {"mask": "dense:0.5"},
]


def members(x: np.ndarray, centroid: np.ndarray, count: int, among: int) -> set[int]:
    """The `count` tokens of x [T, D] that point most in the centroid's direction, those from `among` on last."""
    fit = [sum(x[t] * centroid) / math.sqrt(sum(x[t] ** 2)) if t < among else -math.inf for t in range(len(x))]
    return set(sorted(range(len(x)), key=lambda t: (-np.float32(fit[t]), t))[:count])


def loop(call: Call, clusters: int) -> np.ndarray:
    q, k, mu = call.q.numpy(), call.expanded().k.numpy(), call.parameters["centroids"].numpy()
    tokens, keys = q.shape[2], k.shape[2]
    visible = call.mask.visible()
    visible = np.ones((2, 4, tokens, keys), bool) if visible is None else visible.expand(2, 4, -1, -1).numpy()
    lengths = [keys] * 2 if call.mask.key_lengths is None else call.mask.key_lengths.tolist()
    a = np.zeros((2, 4, tokens, keys))
    for b, h in np.ndindex(2, 4):
        times = np.zeros(tokens)
        for c in range(clusters):
            rows = members(q[b, h], mu[h, c], math.ceil(tokens / clusters), tokens)
            columns = members(k[b, h], mu[h, c], math.ceil(keys / clusters), lengths[b])
            for i in rows:
                logits = np.array([sum(q[b, h, i] * k[b, h, j]) / 2.0 for j in range(keys)])
                a[b, h, i] += softmax_loop(logits, visible[b, h, i] & np.isin(np.arange(keys), list(columns)))
                times[i] += 1
        a[b, h] /= np.maximum(times, 1)[:, None]
    return a


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("clusters", [2, 3, 8])
def test_every_element_is_the_mean_of_softmaxes_within_clusters(axes: dict, clusters: int) -> None:
    variant = catalogue.find(f"routing:clusters-{clusters}.dense").variant
    call = drawn(variant, **{"q_len": 11, "kv_len": 11, **axes})
    expected = loop(call, clusters)
    found = variant.weights(call.expanded(), torch.arange(call.q.shape[2])).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-13)
    for form in FORMS:
        out = run(f"routing:clusters-{clusters}.{form}", call).numpy()
        np.testing.assert_allclose(out, expected @ call.expanded().v.numpy(), atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["full", "causal", "padded:0.5"])
def test_one_cluster_is_softmax(form: str, mask: str) -> None:
    variant = catalogue.find("routing:clusters-1.dense").variant
    call = drawn(variant, mask=mask, kv_heads=2)
    torch.testing.assert_close(run(f"routing:clusters-1.{form}", call), definition(SOFTMAX, call))


@pytest.mark.parametrize("form", FORMS)
def test_tokens_that_point_along_two_centroids_attend_among_their_own_kind(form: str) -> None:
    name = f"routing:clusters-2.{form}"
    call = drawn(implementation(name).variant, q_len=6, kv_len=6, mask="full", batch=1, heads=1, kv_heads=1)
    axes = torch.eye(4, dtype=torch.float64)[:2]
    kinds = torch.tensor([0, 1, 1, 0, 1, 0])
    call = with_parameters(replace(call, q=axes[kinds][None, None], k=axes[kinds][None, None]), centroids=axes[None])
    means = torch.stack([call.v[0, 0, kinds == kind].mean(0) for kind in (0, 1)])
    torch.testing.assert_close(run(name, call)[0, 0], means[kinds])


@pytest.mark.parametrize("form", FORMS)
def test_only_the_direction_of_a_token_decides_where_it_goes(form: str) -> None:
    name = f"routing:clusters-3.{form}"
    call = drawn(implementation(name).variant, q_len=12, kv_len=12, mask="full")
    longer = replace(call, k=call.k * torch.linspace(0.25, 4.0, 12, dtype=torch.float64).unsqueeze(-1), q=call.q * 0)
    same = replace(longer, k=call.k)  # queries of zero weigh all keys of a cluster alike
    torch.testing.assert_close(run(name, longer), run(name, same))


@pytest.mark.parametrize("form", FORMS)
def test_a_causal_mask_lets_no_later_value_through(form: str) -> None:
    name = f"routing:clusters-3.{form}"
    call = drawn(implementation(name).variant, q_len=9, kv_len=9)
    other = replace(call, v=call.v.clone())
    other.v[:, :, 5:] += 1.0
    assert torch.equal(run(name, other)[:, :, :5], run(name, call)[:, :, :5])
