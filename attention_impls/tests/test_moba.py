from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.mask import Mask
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, implementation, run
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("dense", "gathered", "gathered:rows-5")


def loop(call: Call, block: int, chosen: int) -> np.ndarray:
    """A from the paper's equations, one query at a time; starts and lengths from the mask."""
    q, k = call.q.numpy(), call.k.numpy()
    batch, heads, rows, dim = q.shape
    keys = k.shape[2]
    lengths = [keys] * batch if call.mask.key_lengths is None else call.mask.key_lengths.tolist()
    expected = np.zeros((batch, heads, rows, keys))
    for b, h, i in np.ndindex(batch, heads, rows):
        at, g = call.mask.q_start + i, h * k.shape[1] // heads
        gate = {}
        for n in range(at // block):
            inside = [j for j in range(n * block, (n + 1) * block) if j < min(lengths[b], keys)]
            if inside:
                gate[n] = q[b, h, i] @ k[b, g, inside].mean(0)
        best = sorted(gate, key=lambda n: (-gate[n], n))
        own = [at // block] if at // block * block < keys else []  # a query may stand behind the last block
        blocks = (own + best)[:chosen]
        seen = [j for j in range(min(at + 1, lengths[b], keys)) if j // block in blocks]
        powers = np.exp([q[b, h, i] @ k[b, g, j] / np.sqrt(dim) for j in seen])
        expected[b, h, i, seen] = powers / powers.sum()
    return expected


CALLS = [
    {"q_len": 17, "kv_len": 17},
    {"q_len": 18, "kv_len": 18, "mask": "causal+padded:0.4"},
    {"q_len": 5, "kv_len": 19, "mask": "causal:bottom_right", "kv_heads": 2},
    {"q_len": 20, "kv_len": 9},
]


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize("chosen", [1, 2, 3])
def test_every_element_is_softmax_over_the_own_block_and_the_best_means(axes: dict, chosen: int) -> None:
    variant = catalogue.find(f"moba:block-4:chosen-{chosen}.dense").variant
    call = drawn(variant, **axes)
    expected = loop(call, 4, chosen)
    found = variant.weights(call.expanded(), torch.arange(call.q.shape[2])).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-13)
    for form in FORMS:
        out = run(f"moba:block-4:chosen-{chosen}.{form}", call).numpy()
        np.testing.assert_allclose(out, expected @ call.expanded().v.numpy(), atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["causal", "causal+padded:0.5"])
def test_all_blocks_chosen_is_causal_softmax(form: str, mask: str) -> None:
    call = drawn(SOFTMAX, q_len=11, kv_len=11, mask=mask)
    torch.testing.assert_close(run(f"moba:block-4:chosen-3.{form}", call), definition(SOFTMAX, call))
    assert not torch.allclose(run(f"moba:block-4:chosen-1.{form}", call), definition(SOFTMAX, call))


@pytest.mark.parametrize("form", FORMS)
def test_blocks_with_equal_means_go_to_the_earlier(form: str) -> None:
    call = drawn(SOFTMAX, q_len=9, kv_len=9, batch=1, heads=1, kv_heads=1)
    flat = replace(call, k=torch.zeros_like(call.k))
    last = (call.v[0, 0, :3].sum(0) + call.v[0, 0, 6:].sum(0)) / 6
    torch.testing.assert_close(run(f"moba:block-3:chosen-2.{form}", flat)[0, 0, 8], last)


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"moba:block-2:chosen-2.{form}", drawn(SOFTMAX), 4)


@pytest.mark.parametrize("form", FORMS)
def test_rows_alone_choose_what_they_choose_together(form: str) -> None:
    whole = drawn(SOFTMAX, q_len=13, kv_len=13)
    name = f"moba:block-3:chosen-2.{form}"
    torch.testing.assert_close(run(name, whole.rows(7, 12)), run(name, whole)[:, :, 7:12])


@pytest.mark.parametrize("words", [{"mask": "full"}, {"mask": "packed:2+causal"}])
def test_what_has_no_meaning_is_refused_by_a_sentence(words: dict) -> None:
    call = drawn(SOFTMAX, **words)
    assert len(implementation("moba.gathered").refuses(call).split()) > 4
    moved = replace(call, mask=Mask(7, 7, causal=True, k_start=3, q_start=3))
    assert "from key 0" in implementation("moba.gathered").refuses(moved)
