"""How things are measured: every choice by name. Those that define the measurement make its digest;
budgets, precision targets and caps only say how long to go on."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from dataclasses import asdict, dataclass, field, fields

from attention_impls.contract import CONTRACT_VERSION
from attention_impls.inputs import SEED


def heap_policy() -> str:
    """ "pinned" where glibc can be told to keep its memory (see supervisor), "system" elsewhere."""
    return "pinned" if sys.platform == "linux" and platform.libc_ver()[0] == "glibc" else "system"


@dataclass(frozen=True)
class Protocol:
    """One way to measure. Fields marked limit=True are not part of the digest."""

    version: int = 1
    contract: int = CONTRACT_VERSION
    seed: int = SEED
    heap: str = field(default_factory=heap_policy)
    clock: str = ""  # "" is the device's default: wall on CPU, events on CUDA (or graph, or wall)
    block_s: float = 1e-3  # a timed block lasts at least this long
    warm_calls: int = 3
    warm_s: float = 0.1
    block_warm_s: float = 3e-4  # untimed calls before each block last this long, or one call
    input_sets: int = 2
    oracle_rows: int = 16
    garbage_collector: str = "off"
    fp32_precision: str = "ieee"
    max_memory: int = field(default=0, metadata={"limit": True})  # bytes, of the metric `longest`; 0: nobody asked
    min_rounds: int = field(default=15, metadata={"limit": True})
    least_rounds: int = field(default=0, metadata={"limit": True})  # taken even past the time budget
    max_rounds: int = field(default=400, metadata={"limit": True})
    precision: float = field(default=0.02, metadata={"limit": True})
    group_budget_s: float = field(default=20.0, metadata={"limit": True})
    step_timeout_s: float = field(default=120.0, metadata={"limit": True})
    first_call_timeout_s: float = field(default=300.0, metadata={"limit": True})
    memory_limit: int = field(default=0, metadata={"limit": True})  # bytes a child may add; 0: 80 % of what is free

    def digest(self) -> str:
        """Twelve hex digits of everything that defines the measurement."""
        limits = {f.name for f in fields(self) if f.metadata.get("limit")}
        kept = {name: value for name, value in asdict(self).items() if name not in limits}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]
