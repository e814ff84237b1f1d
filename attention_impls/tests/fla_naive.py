"""flash-linear-attention's reference files as oracles: by other authors, without the package, which needs triton."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def fla_naive(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """flash-linear-attention's reference file of `name`, read by its path: the package itself needs triton."""
    pytest.importorskip("einops")
    package = importlib.util.find_spec("fla")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs fla-core")
    for parent in ("fla", "fla.ops", "fla.ops.utils", "fla.ops.utils.pooling"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    for kernel in ("flash_attn_func", "flash_attn_varlen_func"):  # only for its window
        setattr(sys.modules["flash_attn"], kernel, None)
    sys.modules["fla.ops.utils"].prepare_chunk_offsets = None  # only for packed documents
    sys.modules["fla.ops.utils.pooling"].mean_pooling = None  # means are handed in
    path = Path(package.submodule_search_locations[0]) / "ops" / name / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_naive_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
