"""Shared by the tests of mechanisms with a state: a state kept entry by entry, what every form must do, fla's files."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Variant
from attention_impls.oracle import rows_of
from attention_impls.tests.variant_steps import drawn, implementation, run

FORMS = ("recurrent", "chunkwise", "chunkwise:chunk-3", "parallel")
AXES = [{}, {"kv_heads": 2, "value_dim": 3}, {"q_len": 2, "mask": "causal:bottom_right"}]

Change = Callable[[np.ndarray, Call, int, int, int], np.ndarray]
"""(state [D, E], call, sequence b, key/value head g, key j) -> the state after key j, as the paper writes it."""


def definition(variant: Variant, call: Call) -> Tensor:
    """All rows from the definition, of a call short enough for it."""
    return rows_of(variant, call.expanded(), torch.arange(call.q.shape[2]))[0]


def recurrence(call: Call, change: Change) -> Tensor:
    """out [B, H, I, E], one sequence, head and key after the other in numpy; rows past the last key read the last."""
    batch, heads, rows, size = call.q.shape
    keys, values = call.v.shape[2:]
    out = np.zeros((batch, heads, rows, values))
    for b, h in np.ndindex(batch, heads):
        state, after = np.zeros((size, values)), []
        for j in range(keys):
            state = change(state, call, b, h // call.group, j)
            after.append(state)
        for i in range(rows):
            out[b, h, i] = call.scale * call.q[b, h, i].numpy() @ after[call.mask.q_start + i]
    return torch.from_numpy(out)


def holds_to_the_recurrence(variant: Variant, change: Change, axes: dict[str, object]) -> None:
    """The definition and every form give what the recurrence gives."""
    call = drawn(variant, **axes)
    right = recurrence(call, change)
    torch.testing.assert_close(definition(variant, call), right, rtol=0, atol=1e-12)
    for form in FORMS:
        torch.testing.assert_close(run(f"{variant.name}.{form}", call), right, rtol=0, atol=1e-12)


def oracle_is_the_matrix(variant: Variant) -> None:
    """The faster float64 form for long sequences gives what the rows of A give."""
    call = drawn(variant, q_len=150, kv_len=150, batch=1, mask="causal+padded:0.6")
    rows = torch.tensor([0, 63, 64, 149])
    assert variant.oracle is not None
    torch.testing.assert_close(variant.oracle(call, rows), rows_of(variant, call, rows)[0], rtol=0, atol=1e-12)


def decodes_from_a_cache(variant: Variant, mask: str, rows: int, name: str = "") -> None:
    """The last rows of the whole, from what prefill made of the keys before them, which are not read again."""
    made = implementation(f"{name or variant.name}.recurrent")
    whole = drawn(variant, q_len=70, kv_len=70, kv_heads=2, mask=mask)
    last = whole.rows(70 - rows, 70)
    cache = made.prefill(last)
    unread = replace(last, k=last.k.clone(), v=last.v.clone())
    unread.k[:, :, : 70 - rows] = 7.0
    unread.v[:, :, : 70 - rows] = 7.0
    own = {name: p.clone() for name, p in last.parameters.items()}
    for parameter, p in own.items():
        if "J" in last.axes[parameter].split():
            p.narrow(last.axes[parameter].split().index("J"), 0, 70 - rows).fill_(-3.0)
    unread = replace(unread, parameters=own)
    right = run(made, whole)[:, :, 70 - rows :]
    torch.testing.assert_close(made.resume(unread, cache).out, right, rtol=0, atol=1e-12)


def documents_are_apart(variant: Variant, name: str = "") -> None:
    """Documents side by side give what each gives alone, in every form."""
    name = name or variant.name
    call = drawn(variant, q_len=11, kv_len=11, batch=1, mask="packed:3+causal")
    ids = call.mask.k_segments[0]
    apart = []
    for document in ids.unique():
        at = (ids == document).nonzero()[[0, -1]].flatten().tolist()
        part = call.rows(at[0], at[1] + 1).keys(at[0], at[1] + 1)
        alone = replace(part, mask=replace(part.mask, q_segments=None, k_segments=None))
        apart.append(run(f"{name}.recurrent", alone))
    for form in FORMS:
        torch.testing.assert_close(run(f"{name}.{form}", call), torch.cat(apart, 2), rtol=0, atol=1e-12)
    pieces = torch.arange(11)[None] % 2
    torn = replace(call, mask=replace(call.mask, q_segments=pieces, k_segments=pieces))
    assert "one run of tokens" in implementation(f"{name}.recurrent").refuses(torn)


def early_queries_give_zeros(variant: Variant, name: str = "", forms: tuple[str, ...] = FORMS) -> None:
    """Queries that stand before the first key see nothing."""
    name = name or variant.name
    call = drawn(variant, q_len=6, kv_len=3, mask="causal:bottom_right")
    for form in forms:
        out = run(f"{name}.{form}", call)
        assert not out[:, :, :3].any()
        torch.testing.assert_close(out, definition(variant, call), rtol=0, atol=1e-12)


def fla_naive(name: str) -> ModuleType:
    """fla-core's plain file ops/<name>, by its path: the package itself needs triton. Skips where it is not here."""
    pytest.importorskip("einops")
    package = importlib.util.find_spec("fla")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs fla-core")
    path = Path(package.submodule_search_locations[0]) / "ops" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"fla_plain_{name.replace('/', '_')}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokens_first(x: Tensor) -> Tensor:
    """[B, H, T, ...] -> [B, T, H, ...], fla's order, in float32."""
    return x.transpose(1, 2).float()
