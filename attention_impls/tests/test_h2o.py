from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation, run
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("dense", "gathered", "gathered:rows-5")


def loop(call: Call, heavy: int, recent: int) -> tuple[np.ndarray, int]:
    """A by keeping a set of keys, one token after another; and the largest number of keys any query attended to."""
    q, k = call.q.numpy(), call.expanded().k.numpy()
    batch, heads, tokens, dim = q.shape
    lengths = [tokens] * batch if call.mask.key_lengths is None else call.mask.key_lengths.tolist()
    a, most = np.zeros((batch, heads, tokens, tokens)), 0
    for b, h in np.ndindex(batch, heads):
        cache: set[int] = set()
        account = np.zeros(tokens)
        for i in range(tokens):
            cache |= {i} if i < lengths[b] else set()
            seen = sorted(cache)
            powers = np.exp([q[b, h, i] @ k[b, h, j] / dim**0.5 for j in seen])
            a[b, h, i, seen] = powers / powers.sum()
            account += a[b, h, i]
            before = sorted((j for j in cache if j <= i - recent), key=lambda j: (-np.float32(account[j]), j))
            cache = {j for j in cache if j > i - recent} | set(before[:heavy])
            most = max(most, len(seen))
    return a, most


@pytest.mark.parametrize("mask", ["causal", "causal+padded:0.4"])
@pytest.mark.parametrize(("heavy", "recent"), [(1, 1), (3, 2), (2, 5), (9, 1), (30, 1)])
def test_every_element_is_softmax_over_what_a_cache_kept_by_hand_holds(mask: str, heavy: int, recent: int) -> None:
    name = f"h2o:heavy-{heavy}:recent-{recent}."
    variant = catalogue.find(name + "dense").variant
    call = drawn(variant, q_len=23, kv_len=23, kv_heads=2, mask=mask)
    expected, most = loop(call, heavy, recent)
    assert most == min(heavy + recent + 1, 23) or (mask != "causal" and heavy == 30)  # its longest sequence is shorter
    np.testing.assert_allclose(variant.weights(call.expanded(), torch.arange(23)).numpy(), expected, atol=1e-13)
    few = variant.weights(call.expanded(), torch.tensor([4, 20])).numpy()
    np.testing.assert_allclose(few, expected[:, :, [4, 20]], atol=1e-13)
    for form in FORMS:
        np.testing.assert_allclose(run(name + form, call).numpy(), expected @ call.expanded().v.numpy(), atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("heavy", "recent"), [(5, 5), (1, 9), (9, 1), (64, 64)])
def test_a_cache_for_every_key_but_the_own_is_softmax(form: str, heavy: int, recent: int) -> None:
    call = drawn(SOFTMAX, q_len=11, kv_len=11)
    torch.testing.assert_close(run(f"h2o:heavy-{heavy}:recent-{recent}.{form}", call), definition(SOFTMAX, call))
    assert not torch.allclose(run(f"h2o:heavy-5:recent-4.{form}", call), definition(SOFTMAX, call), atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_equal_weights_keep_the_earliest_as_heavy(form: str) -> None:
    """With keys of zero every weight is 1 over the number seen, so that earlier keys have larger accounts."""
    call = drawn(SOFTMAX, q_len=9, kv_len=9)
    call = replace(call, k=torch.zeros_like(call.k))
    out = run(f"h2o:heavy-2:recent-1.{form}", call)
    torch.testing.assert_close(out[:, :, 8], call.v[:, :, [0, 1, 7, 8]].mean(2))


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"h2o:heavy-1:recent-1.{form}", drawn(SOFTMAX), 4)


@pytest.mark.parametrize("words", [{"mask": "full"}, {"q_len": 1, "mask": "causal:bottom_right"}])
def test_calls_that_do_not_tell_the_whole_story_are_refused_by_a_sentence(words: dict) -> None:
    assert "h2o" in implementation("h2o.gathered").refuses(drawn(SOFTMAX, **words))
