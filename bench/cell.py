"""One thing to measure and its name: `<subject>/<workload>/<direction>/<device>`.

`softmax.naive+recompute/b1-h8-n1024-d64-f32-causal/fwd/cpu1`: fixed order; b, h, n, d, dtype and mask
always, other axes where they differ from the written default (g kv heads = h, m keys = n, e value size = d,
in. distribution = normal). One function prints an id, one reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from attention_impls import names
from attention_impls.contract import DIRECTIONS, DTYPES, Workload
from bench.errors import UserError
from bench.record import Scalar

_WORKLOAD = re.compile(
    r"b(?P<batch>\d+)-h(?P<heads>\d+)(?:-g(?P<kv_heads>\d+))?-n(?P<q_len>\d+)(?:-m(?P<kv_len>\d+))?"
    r"-d(?P<head_dim>\d+)(?:-e(?P<value_dim>\d+))?-(?P<dtype>[a-z0-9]+)-(?P<mask>[a-z0-9_.+:]+)"
    r"(?:-in\.(?P<inputs>[a-z0-9_]+))?\Z"
)
_DEVICE = re.compile(r"(?:cpu(?P<threads>[1-9]\d*)|(?P<other>[a-z]+))\Z")
EXAMPLE = "softmax.naive/b1-h8-n1024-d64-f32-causal/fwd/cpu1"


@dataclass(frozen=True)
class Cell:
    """A subject under a workload, in one direction, on a device with a number of CPU threads."""

    subject: str
    workload: Workload
    direction: str
    device: str
    threads: int

    @property
    def id(self) -> str:
        """Its name; unique, also when case is ignored."""
        return f"{self.subject}/{self.setting}"

    @property
    def setting(self) -> str:
        """Everything but the subject: what the contenders of a group share."""
        place = f"cpu{self.threads}" if self.device == "cpu" else self.device
        return f"{workload_text(self.workload)}/{self.direction}/{place}"


def workload_text(w: Workload) -> str:
    """The workload part of an id."""
    parts = [f"b{w.batch}", f"h{w.heads}"]
    parts += [f"g{w.kv_heads}"] if w.kv_heads != w.heads else []
    parts += [f"n{w.q_len}"]
    parts += [f"m{w.kv_len}"] if w.kv_len != w.q_len else []
    parts += [f"d{w.head_dim}"]
    parts += [f"e{w.value_dim}"] if w.value_dim != w.head_dim else []
    parts += [w.dtype, w.mask]
    parts += [f"in.{w.inputs}"] if w.inputs != "normal" else []
    return "-".join(parts)


def parse_id(text: str) -> Cell:
    """The cell that an id names. Raises UserError naming the part that does not fit."""
    parts = text.split("/")
    if len(parts) != 4:
        raise UserError(f"{text!r} is no cell id; expected subject/workload/direction/device, as in {EXAMPLE}")
    subject, workload, direction, device = parts
    try:
        name = str(names.parse(subject))
    except names.BadNameError as error:
        raise UserError(str(error)) from None
    if direction not in DIRECTIONS:
        raise UserError(f"{text!r}: no direction {direction!r}; known: {', '.join(DIRECTIONS)}")
    place = _DEVICE.match(device)
    if place is None:
        raise UserError(f"{text!r}: no device {device!r}; expected cpu<threads> or cuda")
    threads = int(place["threads"] or 1)
    return Cell(name, parse_workload(workload), direction, place["other"] or "cpu", threads)


def parse_workload(text: str) -> Workload:
    """The workload that its text names. Raises UserError."""
    found = _WORKLOAD.match(text)
    if found is None:
        raise UserError(f"{text!r} is no workload; expected b<batch>-h<heads>-n<length>-d<size>-<dtype>-<mask>")
    n = {name: int(value) for name, value in found.groupdict().items() if value and value.isdigit()}
    if found["dtype"] not in DTYPES:
        raise UserError(f"{text!r}: no dtype {found['dtype']!r}; known: {', '.join(DTYPES)}")
    try:
        return Workload(
            batch=n["batch"],
            heads=n["heads"],
            kv_heads=n.get("kv_heads", n["heads"]),
            q_len=n["q_len"],
            kv_len=n.get("kv_len", n["q_len"]),
            head_dim=n["head_dim"],
            value_dim=n.get("value_dim", n["head_dim"]),
            dtype=found["dtype"],
            mask=found["mask"],
            inputs=found["inputs"] or "normal",
        )
    except ValueError as error:
        raise UserError(f"{text!r}: {error}") from None


def coordinates(cell: Cell, reference: str) -> dict[str, Scalar]:
    """Every coordinate of a cell, flat, so that no reader parses an id."""
    name = names.parse(cell.subject)
    return {
        "id": cell.id,
        "subject": cell.subject,
        "variant": name.variant,
        "implementation": name.implementation,
        "options": "".join(f":{n}-{v}" for n, v in (*name.variant_options, *name.implementation_options)),
        "transforms": "+".join(str(step) for step in name.transforms),
        "layer": name.layer or "",
        "layer_transforms": "+".join(str(step) for step in name.layer_transforms),
        **asdict(cell.workload),
        "direction": cell.direction,
        "device": cell.device,
        "threads": cell.threads,
        "group": cell.setting,
        "reference": reference,
    }


def to_data(cell: Cell) -> dict[str, Any]:
    """The cell as JSON-ready data for a child."""
    return asdict(cell)


def from_data(data: Mapping[str, Any]) -> Cell:
    """The cell that `to_data` wrote."""
    return Cell(**{**data, "workload": Workload(**data["workload"])})
