"""What conformance cannot ask of outside libraries: that they stay away until used, that refused faults are real."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from attention_impls import catalogue, peers
from attention_impls.contract import Implementation
from attention_impls.tests.variant_steps import definition, drawn, implementation, run
from attention_impls.variants.recurrent.retention import RETENTION
from attention_impls.variants.scores.softmax import SOFTMAX

X_TRANSFORMERS = ("softmax.x_transformers", "softmax.x_transformers_flash")


@cache
def of_peers() -> dict[str, Implementation]:
    modules = catalogue._modules(peers)
    made = [i for module in modules for i in catalogue._factory(module)[0]()]
    return {f"{i.variant.name}.{i.name}": i for i in made}


def installed(name: str) -> Implementation:
    found = implementation(name)
    if found.missing():
        pytest.skip(found.missing())
    return found


def test_no_library_is_imported_before_it_is_used() -> None:
    libraries = {module.__name__.rpartition(".")[2] for module in catalogue._modules(peers)}
    code = "import sys; from attention_impls import catalogue; catalogue.entries(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "attention_impls.peers.fla" in loaded
    assert not libraries & set(loaded)


def test_an_absent_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name, made in of_peers().items():
        assert "pip install" in (made.missing() or ""), name


def test_an_implementation_is_called_after_its_library() -> None:
    for name, made in of_peers().items():
        (need, *_) = made.support.needs
        assert made.name.startswith(need.what.removeprefix("the package ")), name


@pytest.mark.parametrize("name", X_TRANSFORMERS)
@pytest.mark.parametrize("q_len", [1, 9])
def test_x_transformers_puts_the_causal_corner_at_the_last_key(name: str, q_len: int) -> None:
    installed(name)
    call = drawn(SOFTMAX, q_len=q_len, kv_len=37, mask="causal:bottom_right")
    found = run(name, call.map(Tensor.float)).double()
    torch.testing.assert_close(found, definition(SOFTMAX, call), rtol=1e-5, atol=1e-6)


def test_the_fault_of_tiled_heads_is_there() -> None:
    """Query head 1 of 4 over 2 reads key head 1 there, 0 here."""
    made = installed("softmax.x_transformers")
    call = drawn(SOFTMAX, kv_heads=2, mask="full").map(Tensor.float)
    assert "mod G" in str(made.refuses(call))
    right = definition(SOFTMAX, replace(call, k=call.k[:, [0, 1, 0, 1]], v=call.v[:, [0, 1, 0, 1]]))
    torch.testing.assert_close(made.prepare(call, False)(call).out, right, rtol=1e-5, atol=1e-6)


def test_the_default_of_memory_efficient_attention_is_off_by_its_epsilon() -> None:
    installed("softmax.memory_efficient_attention_pytorch")
    library = peers.imported("memory_efficient_attention_pytorch.memory_efficient_attention")
    call = drawn(SOFTMAX, kv_len=1, mask="full")
    found = library.memory_efficient_attention(call.q, call.k, call.v)
    torch.testing.assert_close(found, call.v.expand_as(found) / (1 + 1e-8), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("tokens", "finite"), [(2795, True), (2796, False)])
def test_retention_of_fla_overflows_where_it_is_refused(tokens: int, finite: bool) -> None:
    made = installed("retention.fla_parallel")
    axes = {"batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 1, "value_dim": 1}
    call = drawn(RETENTION, q_len=tokens, kv_len=tokens, **axes).map(Tensor.float)
    assert (made.refuses(call) is None) == finite
    assert bool(made.prepare(call, False)(call).out.isfinite().all()) == finite


def test_retention_of_fla_is_refused_other_decays_than_those_built_in() -> None:
    made = installed("retention.fla_parallel")
    call = drawn(RETENTION).map(Tensor.float)
    assert made.refuses(call) is None
    assert "built in" in str(made.refuses(call.heads(1, 3)))


def test_a_file_of_a_package_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        peers.loaded("no_such_package", "a.py")
