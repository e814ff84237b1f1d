"""What conformance asks of an entrant: workloads as data, small and awkward.

A case is a workload and, where the mask language of workloads has no word for it, a change of its mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from attention_impls.contract import Workload
from attention_impls.mask import Mask


@dataclass(frozen=True)
class Case:
    """A named workload; `remask` turns the mask of its text into one that no text can say."""

    name: str
    workload: Workload
    remask: Callable[[Mask], Mask] | None = None


BASE = Workload(batch=2, heads=4, kv_heads=4, q_len=33, kv_len=33, head_dim=8, value_dim=8, dtype="f64", mask="full")


def _case(name: str, remask: Callable[[Mask], Mask] | None = None, n: int = 0, **axes: object) -> Case:
    lengths = {"q_len": n, "kv_len": n} if n else {}
    return Case(name, replace(BASE, **{**lengths, **axes}), remask)  # type: ignore[arg-type]


def _one_sequence_without_keys(mask: Mask) -> Mask:
    return replace(mask, key_lengths=torch.tensor([0, mask.kv_len - 4]))


def _ragged_decode(mask: Mask) -> Mask:
    """Each sequence's query stands at its own last key."""
    lengths = torch.tensor([mask.kv_len - 13, mask.kv_len])
    return replace(mask, key_lengths=lengths, causal=True, q_start=lengths - mask.q_len)


def _packed_with_prefixes(mask: Mask) -> Mask:
    """Two documents of 3 and 5 queries on 7 and 9 cached keys: a start for every token."""
    q_segments = torch.tensor([[0] * 3 + [1] * 5])
    k_segments = torch.tensor([[0] * 7 + [1] * 9])
    starts = torch.tensor([[4] * 3 + [8] * 5])  # row r stands at start + r: keys 4, 5, 6 and 11 … 15
    return replace(mask, causal=True, q_segments=q_segments, k_segments=k_segments, q_start=starts)


CASES = {
    case.name: case
    for case in (
        _case("square"),
        _case("square_causal", n=37, mask="causal"),
        _case("awkward", n=137, mask="causal", kv_heads=2),
        _case("round", n=64),
        _case("round_causal", n=64, mask="causal"),
        _case("grouped", kv_heads=2),
        _case("multi_query", kv_heads=1, mask="causal"),
        _case("grouped_cross", kv_heads=2, q_len=9, kv_len=37, mask="causal:bottom_right"),
        _case("decode", kv_heads=2, q_len=1, kv_len=137, mask="causal:bottom_right"),
        _case("cross", q_len=21, kv_len=33),
        _case("cross_values", q_len=21, kv_len=33, value_dim=12),
        _case("top_left", q_len=37, mask="causal"),
        _case("unseeing_queries", q_len=37, mask="causal:bottom_right"),
        _case("value_size", value_dim=12, mask="causal"),
        _case("one_query", q_len=1),
        _case("one_key", kv_len=1),
        _case("one_token", n=1, mask="causal"),
        _case("zero_batch", batch=0),
        _case("padded", mask="padded:0.5"),
        _case("causal_padded", mask="causal+padded:0.5", kv_heads=2),
        _case("ragged_empty", _one_sequence_without_keys),
        _case("ragged_decode", _ragged_decode, q_len=1),
        _case("packed", mask="packed:3"),
        _case("packed_causal", mask="packed:3+causal"),
        _case("prefixes", _packed_with_prefixes, batch=1, q_len=8, kv_len=16),
        _case("dense", mask="dense:0.5"),
        _case("sparse", mask="dense:0.06"),
    )
}

CHAINED = ("square_causal", "ragged_empty", "decode", "grouped_cross")  # what a transformed entrant is asked
UNMASKED = ("square", "grouped", "cross", "one_query")  # the same of one that knows no causal mask
COMPILED = ("square_causal", "grouped_cross")  # each case costs a compilation
# where most masks, scales and heads come to the same, so that a refusal cannot be put to the test
DEGENERATE = ("one_key", "one_token", "zero_batch", "ragged_decode")
