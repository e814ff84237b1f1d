"""softmax.paged: a shuffled table between a sequence and its keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.mask import Mask
from attention_impls.tests.exact_steps import MASKS, answer, drawn, has_torchs_gradients, is_softmax, sizes_in
from attention_impls.variants.exact.paged import _Pages

PAGES = ("page-1:together-1", "page-4:together-2", "page-16")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("pages", PAGES)
def test_value_and_log_sum_exp_are_those_summed_by_hand(pages: str, mask: str) -> None:
    is_softmax(f"paged:{pages}", drawn(mask))


@pytest.mark.parametrize("mask", ["full", "aligned", "early", "packed"])
def test_gradients_are_those_of_torchs_attention(mask: str) -> None:
    has_torchs_gradients("paged:page-4:together-2", drawn(mask))


def test_the_table_scatters_pages_over_all_sequences_and_loses_none() -> None:
    pages = _Pages.of(drawn(), 2)  # 21 keys: 11 pages a sequence
    assert pages.table.shape == (2, 11) and pages.table.flatten().sort().values.equal(torch.arange(22))
    assert not pages.table.flatten().equal(torch.arange(22)) and (pages.table[0] >= 11).any()
    assert pages.slots.flatten().unique().numel() == 42 and pages.slots.max() < 44


def test_a_token_is_found_in_the_store_where_its_slot_says() -> None:
    call = drawn()
    pages = _Pages.of(call, 4)
    store = pages.write(pages.fresh(call.k), call.k.detach(), 0)
    for b, j in [(0, 0), (0, 20), (1, 7)]:
        physical = int(pages.table[b, j // 4])
        torch.testing.assert_close(store[physical * 4 + j % 4], call.k[b, :, j].detach(), rtol=0, atol=0)


def test_the_output_does_not_depend_on_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    call = drawn("aligned")
    before = answer("paged:page-4:together-2", call).out
    monkeypatch.setattr(torch, "randperm", lambda n, generator: torch.arange(n - 1, -1, -1))
    torch.testing.assert_close(answer("paged:page-4:together-2", call).out, before, rtol=0, atol=1e-14)


def test_a_decoding_step_holds_a_few_pages_of_each_sequence_at_a_time() -> None:
    made = catalogue.find("softmax.paged:page-16:together-3").bare
    last = drawn(Mask(1, 256, causal=True, q_start=255)).map(torch.Tensor.detach)
    cache = made.prefill(last)
    copies = sizes_in(lambda: made.resume(last, cache), lambda op: op in ("index", "clone", "cat", "copy_"))
    assert max(copies) == 2 * 2 * 3 * 16 * 4


def unread(call: Call, past: int) -> Call:
    """The call with NaN for what stands before its first query."""
    k, v = call.k.detach().clone(), call.v.detach().clone()
    k[:, :, :past], v[:, :, :past] = torch.nan, torch.nan
    return replace(call, q=call.q.detach(), k=k, v=v)


@pytest.mark.parametrize("rows", [1, 3])
def test_resume_gives_what_a_run_gives_and_reads_nothing_of_the_past(rows: int) -> None:
    call = drawn("causal").map(torch.Tensor.detach)
    made = catalogue.find("softmax.paged:page-4:together-2").bare
    last = call.rows(13 - rows, 13)
    cache = made.prefill(last)
    for _ in range(2):  # the same step twice: what it writes, it writes to the same place
        found = made.resume(unread(last, 13 - rows), cache).out
        torch.testing.assert_close(
            found, answer("paged:page-4:together-2", call).out[:, :, 13 - rows :], rtol=0, atol=1e-14
        )


@pytest.mark.parametrize("option", ["page-0", "together-0"])
def test_an_option_below_one_is_refused_by_name(option: str) -> None:
    with pytest.raises(ValueError, match=r"option (page|together) must be at least 1"):
        catalogue.find(f"softmax.paged:{option}")
