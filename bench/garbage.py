"""Python's garbage collector, kept out of what is measured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """What is garbage already goes first; then no collection of its own accord, and what lives is not looked at.

    A collection in the middle takes time that is not the step's, and frees bytes that the step never took.
    Within another, the outer one ends it.
    """
    outermost = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if outermost:
            gc.enable()
            gc.unfreeze()
