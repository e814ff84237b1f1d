"""Outside libraries as entrants, one file each; and what their files share: quiet imports, reasons, words of masks.

A library is imported inside `prepare`, called the way its own documents call it, and asked only for what it gets right:
what it cannot be told, and what it does wrong, is refused with the reason. Nothing of it is repaired here.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Output, Run
from attention_impls.mask import Mask

Why = Callable[[Call], str | None]


@cache
def imported(name: str) -> ModuleType:
    """A library's module. Its own warnings while it is imported are not the caller's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@cache
def loaded(package: str, path: str) -> ModuleType:
    """One file of an installed package by its path in it; the package itself, and what it needs, is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package}")
    file = Path(spec.submodule_search_locations[0]) / path
    name = f"{package}_{path.removesuffix('.py').replace('/', '_')}"
    found = importlib.util.spec_from_file_location(name, file)
    if found is None or found.loader is None:
        raise ModuleNotFoundError(f"no file {file}")
    module = importlib.util.module_from_spec(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.loader.exec_module(module)
    return module


def out_only(kernel: Callable[[Call], Tensor]) -> Run:
    """A run that gives the output in q's dtype and no LSE."""
    return lambda call: Output(kernel(call).to(call.q.dtype))


def outside_autocast(kernel: Callable[[Call], Tensor]) -> Run:
    """As `out_only`, for a library that mixes float32 buffers of its own with its inputs and fails under autocast.

    It runs in the inputs' dtype there too; that autocast changed nothing is what its evidence will say.
    """

    def run(call: Call) -> Output:
        with torch.autocast(call.q.device.type, enabled=False):
            return Output(kernel(call).to(call.q.dtype))

    return run


def keys_within(mask: Mask) -> Tensor | None:
    """[B, J] bool, True inside the sequence: how most libraries are told of padding. None without lengths."""
    if mask.key_lengths is None:
        return None
    at = mask.k_start + torch.arange(mask.kv_len, device=mask.key_lengths.device)
    return at < mask.key_lengths.unsqueeze(-1)


def only_default_scale(call: Call) -> str | None:
    """For a library that divides by the root of the head size and takes no other scale."""
    default = call.q.shape[-1] ** -0.5
    same = abs(call.scale - default) <= 1e-12 * default
    return None if same else f"cannot be told a scale; it uses {default:.4g}"


def tiled_heads(call: Call) -> str | None:
    """For a library in which query head h reads key/value head h mod G. With one of them it is the same."""
    grouped = 1 < call.k.shape[1] < call.q.shape[1]
    return "gives query head h the key/value head h mod G, not h·G // H" if grouped else None


def some_heads_shared(call: Call) -> str | None:
    """For a library that expects as many key/value heads as query heads, or one, which its products broadcast."""
    h, g = call.q.shape[1], call.k.shape[1]
    return None if g in (1, h) else f"needs as many key/value heads as query heads, or one ({h} over {g})"


def no_empty_batch(call: Call) -> str | None:
    """For a library whose reshapes cannot be told the sizes of an empty tensor."""
    return None if call.q.shape[0] else "takes no empty batch"


def first_of(*reasons: Why) -> Why:
    """The first reason against a call, if any."""
    return lambda call: next((text for why in reasons if (text := why(call))), None)
