"""The naive forms of flash-linear-attention, loaded by their paths: the package itself needs triton to be imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def naive(operation: str) -> ModuleType:
    """The module ops/<operation>/naive.py of fla-core; skips the test where it is not installed."""
    found = importlib.util.find_spec("fla")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs fla-core")
    path = Path(found.submodule_search_locations[0]) / "ops" / operation / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_{operation}_naive", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
