"""What the device under a group can do at most: a large matrix product and a large copy, in the same child, afterwards.

A rate above them is a number that cannot be. The product is that of the group's dtype; it grows until it takes long
enough to be told from its launch, and the best of a few counts, since a ceiling is no average.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any

import torch

from attention_impls.contract import DTYPES
from bench.device import Device
from bench.record import Scalar

LONG_ENOUGH_S = 0.02
SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
COPIED_BYTES = 2**28  # beyond every cache of today
REPEATS = 5
FLOPS, BANDWIDTH, PEAK = "ceiling_flops", "ceiling_bandwidth", "data_sheet_flops"


def measured(device: Device, dtype: str, gpu: str = "") -> dict[str, Scalar]:
    """flop/s and B/s that were reached, as facts, or a sentence in their place where the device cannot do it.

    dtype: a workload's, by name. gpu: the name its driver gives, "" for none.
    """
    found: dict[str, Scalar] = {}
    reaches = {FLOPS: partial(_product, device, DTYPES[dtype]), BANDWIDTH: partial(_copy, device)}
    for name, reach in reaches.items():
        try:
            found[name] = reach()
        except RuntimeError as error:  # no such product on this device, or no room: a fact about it
            found[name] = f"not measured: {str(error).splitlines()[0]}"
            device.recover()
    stated = data_sheet(gpu).get(dtype)
    return found if stated is None else found | {PEAK: stated}


def data_sheet(gpu: str) -> Mapping[str, float]:
    """flop/s by dtype from the data sheet of a GPU of that name; nothing for one that is not known."""
    chips = tomllib.loads((files("bench") / "chips.toml").read_text("utf-8"))["chip"]
    known: Mapping[str, Any] = next((chip for chip in chips if chip["match"] in gpu), {})
    return {name: float(value) for name, value in known.items() if name in DTYPES}


def _product(device: Device, dtype: torch.dtype) -> float:
    """The best rate of a square matrix product, in flop/s."""
    for size in SIZES:
        a, b = (torch.ones(size, size, dtype=dtype, device=device.name) for _ in range(2))
        seconds = _best(device, partial(torch.mm, a, b, out=torch.mm(a, b)))
        if seconds > LONG_ENOUGH_S:
            break
    return 2.0 * size**3 / seconds


def _copy(device: Device) -> float:
    """The best rate of a copy, read and write counted, in B/s."""
    a, b = (torch.ones(COPIED_BYTES, dtype=torch.int8, device=device.name) for _ in range(2))
    return 2.0 * COPIED_BYTES / _best(device, lambda: b.copy_(a))


def _best(device: Device, step: Callable[[], Any]) -> float:
    seconds = min(device.block(step, 1) for _ in range(REPEATS))
    return seconds if seconds > 0 else math.inf
