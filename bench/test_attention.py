"""The cells of a suite, one test each: `pytest --benchmark-only --attn-suite quick -k "sdpa and n1024"`."""

from __future__ import annotations

from typing import Any

import pytest

from bench.plugin import show


def test_attention(attn_cell: str, benchmark: Any, pytestconfig: pytest.Config) -> None:
    """Shows one cell's measurement; runs its step once where nothing is to be measured."""
    show(attn_cell, benchmark, pytestconfig)
