from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_impls.choosing import among_best, best, block_columns, picked
from attention_impls.inputs import draw_upstream
from attention_impls.tests.variant_steps import drawn, implementation
from attention_impls.variants.scores.softmax import SOFTMAX

ROWS = [
    [0.5, -1.0, 2.0, 2.0, -3.0, 0.0],
    [-0.0, 0.0, -0.0, -1e-30, 1e-30, -2.0],
    [-math.inf, -5.0, math.inf, -math.inf, -5.0, -4.0],
    [1.0 + 1e-12, 1.0, 1.0 + 2e-12, 1.0, 0.5, 1.0],  # equal as float32
]


@pytest.mark.parametrize("count", [1, 2, 4, 6, 9])
def test_the_best_are_those_of_a_sort_by_value_then_place(count: int) -> None:
    single = torch.tensor(ROWS, dtype=torch.float64).float().tolist()
    wanted = [sorted(range(6), key=lambda j: (-row[j], j))[:count] for row in single]
    scores = torch.tensor(ROWS, dtype=torch.float64)
    assert best(scores, count).tolist() == wanted
    kept = among_best(scores, count)
    assert [row.nonzero().flatten().tolist() for row in kept] == [sorted(row) for row in wanted]


def test_heads_that_choose_read_the_keys_of_their_group() -> None:
    x = torch.arange(2 * 2 * 5).view(2, 2, 5, 1)
    at = torch.tensor([4, 0]).expand(2, 4, 3, 2)  # four heads over two key/value heads
    assert picked(x, at)[1, :, 2, :, 0].tolist() == [[14, 10], [14, 10], [19, 15], [19, 15]]


def test_columns_of_a_short_last_block_by_hand() -> None:
    at, exist = block_columns(torch.tensor([[[[2, 0]]]]), 3, 7)
    assert at.flatten().tolist() == [6, 6, 6, 0, 1, 2]
    assert exist.flatten().tolist() == [True, False, False, True, True, True]


class Largest(TorchDispatchMode):
    """Remembers the largest number of elements that any operator made."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(t, Tensor)]
        self.numel = max([self.numel, *(t.numel() for t in made)])
        return out


SPARSE = {
    "topk:k-4": 8 * 256,  # scores of eight rows against every key
    "moba:block-4:chosen-2": 8 * 64,
    "nsa:block-4:chosen-2:window-4": 64 * 67,  # the band takes 64 rows at a time
    "quest:page-4:chosen-2": 8 * 64,
    "dsa:k-4:index_heads-2:index_dim-2": 2 * 8 * 256,
    "h2o:heavy-4:recent-4": 256 * 9,
}


@pytest.mark.parametrize("variant", SPARSE)
def test_no_step_of_a_gathered_form_holds_a_square_of_the_length(variant: str) -> None:
    """Sizes are per sequence and head, and doubled: there are two heads."""
    made = implementation(f"{variant}.gathered:rows-8")
    call = drawn(made.variant, q_len=256, kv_len=256, batch=1, heads=2, kv_heads=2, head_dim=2, value_dim=2)
    call = call.map(lambda t: t.requires_grad_())
    with Largest() as largest:
        out = made.prepare(call, False)(call).out
        out.backward(draw_upstream(out))
    assert largest.numel <= 2 * max(SPARSE[variant], 256 * 4)  # or what is as long as the inputs


def test_what_was_gathered_is_not_kept_for_the_backward() -> None:
    call = drawn(SOFTMAX, q_len=64, kv_len=64, batch=1, heads=1, kv_heads=1, head_dim=32, value_dim=32)
    call, kept = call.map(lambda t: t.requires_grad_()), {}
    kernel = implementation("topk:k-16.gathered").prepare(call, False)

    def note(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        kernel(call)
    inputs, choices, gathered = 3 * 64 * 32 * 8, 64 * 16 * 9, 2 * 64 * 16 * 32 * 8
    assert sum(kept.values()) <= inputs + choices < gathered / 8
