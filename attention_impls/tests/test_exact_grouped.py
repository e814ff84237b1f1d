"""softmax.grouped: query heads that share keys, without a copy of them."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attention_impls.mask import full_mask
from attention_impls.tests.exact_steps import MASKS, answer, drawn, has_torchs_gradients, is_softmax, sizes

FORMS = ("naive", "grouped")
GROUPS = (1, 2, 4)  # multi-query, grouped, multi-head


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", GROUPS)
def test_value_and_log_sum_exp_are_those_summed_by_hand(kv_heads: int, mask: str) -> None:
    is_softmax("grouped", drawn(mask, kv_heads=kv_heads))


@pytest.mark.parametrize("mask", ["full", "aligned", "early", "packed", "dense"])
@pytest.mark.parametrize("kv_heads", GROUPS)
def test_gradients_are_those_of_torchs_attention(kv_heads: int, mask: str) -> None:
    has_torchs_gradients("grouped", drawn(mask, kv_heads=kv_heads))


@pytest.mark.parametrize("kv_heads", GROUPS)
def test_it_is_multi_head_attention_over_repeated_keys(kv_heads: int) -> None:
    call = drawn("full", kv_heads=kv_heads)
    k, v = (t.repeat_interleave(4 // kv_heads, 1) for t in (call.k, call.v))
    wanted = scaled_dot_product_attention(call.q, k, v, scale=call.scale)
    torch.testing.assert_close(answer("grouped", call).out, wanted, rtol=0, atol=1e-13)


def test_keys_are_not_copied_where_the_naive_form_repeats_them() -> None:
    call = drawn(full_mask(1, 512), heads=8, kv_heads=1, d=64, e=64)
    copies = {
        form: sizes(form, call, lambda op: op in ("clone", "copy_", "index_select", "repeat", "cat")) for form in FORMS
    }
    assert max(copies["naive"]) == 2 * 8 * 512 * 64 and not copies["grouped"]
