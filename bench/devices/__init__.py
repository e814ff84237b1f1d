"""Devices: one file each, holding DEVICE; the only place where a device is asked for time or memory."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from bench.device import Device


@cache
def all_devices() -> dict[str, Device]:
    """Every device by its name. Raises TypeError naming a file without DEVICE."""
    found: dict[str, Device] = {}
    for info in pkgutil.iter_modules(__path__, __name__ + "."):
        device = getattr(importlib.import_module(info.name), "DEVICE", None)
        if not isinstance(device, Device):
            raise TypeError(f"{info.name.replace('.', '/')}.py: expected DEVICE, a bench.device.Device")
        found[device.name] = device
    return found


def default_device() -> str:
    """What "auto" means: the GPU where there is one."""
    return next((d.name for d in all_devices().values() if d.name != "cpu" and d.missing() is None), "cpu")


def absent() -> dict[str, str]:
    """Devices that are not on this machine, each with a sentence."""
    return {d.name: text for d in all_devices().values() if (text := d.missing())}
