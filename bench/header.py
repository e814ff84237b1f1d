"""The first line of a run: everything about it that is not about one cell."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from attention_impls import catalogue, names
from bench.environment import commit, digest, disturbances, environment, machine
from bench.metric import all_metrics
from bench.plan import Plan
from bench.protocol import Protocol
from bench.record import SCHEMA, RunHeader, Scalar

# A time limit says how long to go on, not how to measure: two runs that differ in it are compared.


def make_header(plan: Plan, protocol: Protocol, command: Sequence[str] = ()) -> RunHeader:
    """The header of a run of `plan`, on this machine, now."""
    commit_id, dirty = commit()
    around = environment()
    created = datetime.now(UTC)
    stamp = created.strftime("%Y%m%dt%H%M%Sz")
    suite = "".join(c if c.isalnum() else "_" for c in plan.suite.lower())[:40]
    described: dict[str, Scalar] = asdict(protocol)
    return RunHeader(
        schema=SCHEMA,
        run=f"{stamp}-{commit_id[:8]}-{suite}-{secrets.token_hex(4)}",
        created=created.isoformat(timespec="microseconds"),
        plan={
            "suite": plan.suite,
            "reference": list(plan.reference),
            "cells": [planned.cell.id for planned in plan.cells],
            "companions": [planned.cell.id for planned in plan.cells if planned.companion],
        },
        protocol=described,
        protocol_digest=protocol.digest(),
        machine=machine(),
        environment={**around, **{f"at start: {name}": value for name, value in disturbances().items()}},
        environment_digest=digest(around),
        commit=commit_id,
        dirty=dirty,
        metrics={name: metric.info for name, metric in all_metrics().items()},
        texts=_texts(plan),
        left_out=tuple(dict(item) for item in plan.left_out),
        command=tuple(command or ("attnbench", *sys.argv[1:])),  # where the program lies is nobody's business
    )


def _texts(plan: Plan) -> dict[str, dict[str, str]]:
    """What the report says of each variant of the plan."""
    found = {}
    for name in dict.fromkeys(names.parse(planned.cell.subject).variant for planned in plan.cells):
        entry = catalogue.entries()[name]
        variant = next(iter(entry.make())).variant
        found[name] = {
            "family": entry.family,
            "formula": variant.formula,
            "paper": variant.paper,
            "cost": variant.cost,
            "approximates": variant.approximates,
            "doc": (entry.module.__doc__ or "").strip(),
        }
    return found
