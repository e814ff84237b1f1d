from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)
from attention_impls.variants.heads.talking_heads import TALKING_HEADS
from attention_impls.variants.scores.softmax import SOFTMAX

FORMS = ("talking_heads.naive", "talking_heads.folded_flash")


def test_every_element_mixes_logits_before_and_weights_after() -> None:
    call = drawn(TALKING_HEADS, heads=3, kv_heads=3, q_len=4, kv_len=4)
    q, k = call.q.numpy(), call.k.numpy()
    pre, post = call.parameters["pre"].numpy(), call.parameters["post"].numpy()
    expected = np.zeros((2, 3, 4, 4))
    for b, i in np.ndindex(2, 4):
        own = np.array([[sum(q[b, h, i] * k[b, h, j]) / 2.0 for j in range(4)] for h in range(3)])
        seen = np.arange(4) <= i
        maps = [softmax_loop(sum(pre[h, g] * own[h] for h in range(3)), seen) for g in range(3)]
        for h in range(3):
            expected[b, h, i] = sum(post[g, h] * maps[g] for g in range(3))
    np.testing.assert_allclose(TALKING_HEADS.weights(call, torch.arange(4)).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("name", FORMS)
def test_identities_give_softmax(name: str) -> None:
    call = with_parameters(drawn(TALKING_HEADS), pre=torch.eye(4).double(), post=torch.eye(4).double())
    torch.testing.assert_close(run(name, call), definition(SOFTMAX, call))


@pytest.mark.parametrize("name", FORMS)
def test_a_mix_that_swaps_heads_gives_each_head_the_others_map(name: str) -> None:
    swap, keep = torch.eye(2).double().flip(0), torch.eye(2).double()
    call = with_parameters(drawn(TALKING_HEADS, heads=2, kv_heads=2), pre=swap, post=keep)
    maps = SOFTMAX.weights(call, torch.arange(7))
    torch.testing.assert_close(run(name, call), maps.flip(1) @ call.v)


@pytest.mark.parametrize("name", FORMS)
def test_grouped_heads_read_their_groups_keys(name: str) -> None:
    call = drawn(TALKING_HEADS, kv_heads=2)
    torch.testing.assert_close(run(name, call), definition(TALKING_HEADS, call))


@pytest.mark.parametrize("name", FORMS)
def test_a_mask_per_head_is_refused_by_a_sentence(name: str) -> None:
    assert "differs between heads" in implementation(name).refuses(drawn(TALKING_HEADS, mask="dense:0.5"))


@pytest.mark.parametrize("name", FORMS)
def test_later_tokens_change_nothing_before(name: str) -> None:
    changes_nothing_before(name, drawn(TALKING_HEADS), 4)
