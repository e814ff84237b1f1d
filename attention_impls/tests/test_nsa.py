from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.tests.fla_naive import fla_naive
from attention_impls.tests.variant_steps import (
    changes_nothing_before,
    definition,
    drawn,
    implementation,
    run,
    softmax_loop,
    with_parameters,
)
from attention_impls.variants.scores.softmax import SOFTMAX
from attention_impls.variants.sparse.nsa import BRANCHES

FORMS = ("dense", "gathered", "gathered:rows-5")
SMALL = "nsa:block-4:chosen-{chosen}:window-3:share-{share}.{form}"


def gates(call: Call, *values: float) -> Call:
    return with_parameters(
        call, **{n: torch.full_like(call.q[..., 0], v) for n, v in zip(BRANCHES, values, strict=True)}
    )


def blocks_of(importance: dict[int, float], at: int, chosen: int) -> list[int]:
    own = at // 4
    always = list(dict.fromkeys([own, 0, own - 1] if own else [0]))
    rest = sorted((n for n in importance if n not in always), key=lambda n: (-importance[n], n))
    return (always + rest)[:chosen]


def loop(call: Call, chosen: int, share: int) -> np.ndarray:
    """A of blocks of 4 and a window of 3, from the formula, one query at a time; start and lengths from the mask."""
    q, k = call.q.numpy(), call.expanded().k.numpy()
    batch, heads, rows, dim = q.shape
    keys, a = k.shape[2], np.zeros((batch, heads, rows, k.shape[2]))
    lengths = [keys] * batch if call.mask.key_lengths is None else call.mask.key_lengths.tolist()
    g = [call.parameters[n].numpy() for n in BRANCHES]
    for b, i in np.ndindex(batch, rows):
        at = call.mask.q_start + i
        whole = [n for n in range(keys // 4) if 4 * n + 3 <= min(at, lengths[b] - 1)]
        p = np.zeros((heads, len(whole)))
        for h in range(heads):
            scores = [q[b, h, i] @ k[b, h, 4 * n : 4 * n + 4].mean(0) / dim**0.5 for n in whole]
            p[h] = softmax_loop(np.array(scores), np.ones(len(whole), bool))
        for h in range(heads):
            together = range(h // share * share, min(h // share * share + share, heads))
            mean = {n: float(np.mean([p[other, c] for other in together])) for c, n in enumerate(whole)}
            kept = blocks_of(mean, at, chosen)
            logits = np.array([q[b, h, i] @ k[b, h, j] / dim**0.5 for j in range(keys)])
            seen = np.arange(keys) <= min(at, lengths[b] - 1)
            a[b, h, i] = g[1][b, h, i] * softmax_loop(logits, seen & np.isin(np.arange(keys) // 4, kept))
            a[b, h, i] += g[2][b, h, i] * softmax_loop(logits, seen & (np.arange(keys) > at - 3))
            for c, n in enumerate(whole):
                a[b, h, i, 4 * n : 4 * n + 4] += g[0][b, h, i] * p[h, c] / 4
    return a


CALLS = [
    {"q_len": 30, "kv_len": 30},
    {"q_len": 30, "kv_len": 30, "mask": "causal+padded:0.3"},  # 9 keys: later queries see a third of block 2
    {"q_len": 5, "kv_len": 27, "mask": "causal:bottom_right"},
]


@pytest.mark.parametrize("axes", CALLS)
@pytest.mark.parametrize(
    ("chosen", "share", "kv_heads"), [(4, 1, 4), (1, 1, 4), (2, 1, 2), (4, 2, 2), (4, 4, 2), (5, 3, 4)]
)
def test_every_element_is_the_gated_sum_of_three_maps(axes: dict, chosen: int, share: int, kv_heads: int) -> None:
    name = SMALL.format(chosen=chosen, share=share, form="dense")
    variant = catalogue.find(name).variant
    call = drawn(variant, kv_heads=kv_heads, **axes)
    expected = loop(call, chosen, share)
    found = variant.weights(call.expanded(), torch.arange(call.q.shape[2])).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-13)
    for form in FORMS:
        out = run(SMALL.format(chosen=chosen, share=share, form=form), call).numpy()
        np.testing.assert_allclose(out, expected @ call.expanded().v.numpy(), atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_compressed_and_chosen_branches_are_those_of_flash_linear_attention(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fla = fla_naive("nsa", monkeypatch)
    name = SMALL.format(chosen=4, share=2, form=form)
    call = drawn(implementation(name).variant, q_len=30, kv_len=30, kv_heads=2)
    q, k, v = (t.transpose(1, 2) for t in (call.q, call.k, call.v))  # [B, T, H, D]
    means = [torch.cat([x[:, :28].unflatten(1, (7, 4)).mean(2), x[:, 28:].mean(1, True)], 1) for x in (k, v)]
    compressed, _ = fla.naive_nsa_compression(q, *means, 4, call.scale)
    chosen = fla.naive_nsa_topk(q, means[0], 4, 4, call.scale)
    selected = fla.naive_nsa_selection(q, k, v, chosen, 4, call.scale)
    for values, right in (((1.0, 0.0, 0.0), compressed), ((0.0, 1.0, 0.0), selected)):
        found = run(name, gates(call, *values))
        torch.testing.assert_close(found, right.transpose(1, 2), rtol=1e-5, atol=1e-5)  # they work in float32


@pytest.mark.parametrize("form", FORMS)
def test_all_blocks_chosen_alone_are_softmax_and_the_window_alone_is_a_sliding_window(form: str) -> None:
    name = f"nsa:block-4:chosen-3:window-3.{form}"
    call = drawn(implementation(name).variant, q_len=11, kv_len=11)
    torch.testing.assert_close(run(name, gates(call, 0.0, 1.0, 0.0)), definition(SOFTMAX, call))
    window = definition(implementation("sliding_window:window-3.naive").variant, call)
    torch.testing.assert_close(run(name, gates(call, 0.0, 0.0, 1.0)), window)


@pytest.mark.parametrize("form", FORMS)
def test_a_query_that_sees_no_whole_block_has_nothing_compressed(form: str) -> None:
    name = f"nsa:block-4:chosen-3:window-3.{form}"
    call = drawn(implementation(name).variant, q_len=11, kv_len=11)
    out: Tensor = run(name, gates(call, 1.0, 0.0, 0.0))
    assert not out[:, :, :3].any() and out[:, :, 3:].any(-1).all()
    torch.testing.assert_close(out[:, :, 3:7], call.v[:, :, :4].mean(2, keepdim=True).expand(-1, -1, 4, -1))


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    name = SMALL.format(chosen=2, share=1, form=form)
    changes_nothing_before(name, drawn(implementation(name).variant), 4)


def test_heads_that_choose_together_are_not_taken_apart() -> None:
    assert "couples heads" in catalogue.find("nsa:share-2.gathered+head_chunks:2").inner.refuses(drawn(SOFTMAX))
    assert catalogue.find("nsa.gathered+head_chunks:2").variant.couples == {"keys"}


def test_a_call_without_a_causal_mask_is_refused_by_a_sentence() -> None:
    variant = implementation("nsa.gathered").variant
    assert "causal only" in implementation("nsa.gathered").refuses(drawn(variant, mask="full"))
    moved = replace(drawn(variant), mask=replace(drawn(variant).mask, k_start=2))
    assert "from key 0" in implementation("nsa.gathered").refuses(moved)
