"""The options by which `plan` and `run` say what to measure: a suite, axes that override it, a choice of cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench import completion

if TYPE_CHECKING:
    from bench.plan import Plan
    from bench.protocol import Protocol
    from bench.spec import Spec

_AXIS_HELP = {
    "batch": "Batch size.",
    "heads": "Query heads.",
    "kv_heads": "Key/value heads (default: as many as heads).",
    "q_len": "Sequence length (queries).",
    "kv_len": "Keys (default: as many as queries).",
    "head_dim": "Head size.",
    "value_dim": "Value size (default: the head size).",
    "dtype": "f64, f32, tf32, f16 or bf16.",
    "mask": "full, causal, causal:bottom_right, padded:F, packed:N, dense:F, joined by +.",
    "inputs": "normal, heavytail, outliers, runs, offset_channels or scaled_channels.",
    "direction": "fwd, fwdbwd, or train and its kin (layers).",
    "device": "auto, cpu or cuda.",
    "threads": "CPU threads.",
}
_ALIASES = {"q_len": ("--seq-len", "-n"), "device": ("-d",)}


def sweep_options(command: Callable[..., Any], suite: str = "quick") -> Callable[..., Any]:
    """Adds every option that chooses what to measure; `suite` is measured when none is named."""
    options = [
        click.option("--suite", "-s", default=suite, show_default=True, shell_complete=completion.suites,
                     help="A suite's name, or the path of a .toml file."),
        click.option("--subject", "subjects", multiple=True, shell_complete=completion.subjects,
                     help="What to measure instead of the suite's subjects; repeatable; variant.* and * are allowed."),
        click.option("--model", default=None, shell_complete=completion.models,
                     help="Sets the shape axes to those of a well-known model (attnbench list models)."),
        *(
            click.option(f"--{axis.replace('_', '-')}", *_ALIASES.get(axis, ()), axis, multiple=True,
                         help=f"{text} Repeatable, or separated by commas.")
            for axis, text in _AXIS_HELP.items()
        ),
        click.option("-k", "keep", default="", metavar="EXPR", help="Only cells whose id fits: words, and, or, not."),
        click.option("--cell", "cells", multiple=True, metavar="ID", help="Exactly this cell; repeatable."),
        click.option("--plugin", "plugins", multiple=True, metavar="FILE",
                     type=click.Path(path_type=Path), help="A Python file with IMPLEMENTATIONS; repeatable."),
        click.option("--budget", default=None, metavar="TIME", help="Fit the whole run into this time, as in 10m."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def spec_of(chosen: Mapping[str, Any]) -> Spec:
    """The spec that the options describe. Raises UserError."""
    from bench.spec import AXES, load, override

    load_plugins(chosen["plugins"])
    spec = load(chosen["suite"])
    axes = _model_axes(chosen["model"]) | {axis: _split(chosen[axis]) for axis in AXES if chosen.get(axis)}
    spec = override(spec, axes, chosen["subjects"])
    return replace(spec, keep=chosen["keep"], cells=tuple(chosen["cells"]))


def planned(chosen: Mapping[str, Any]) -> tuple[Plan, Protocol]:
    """The plan and the protocol that the options describe, fitted into `--budget` where one is given."""
    from bench.budget import fit
    from bench.devices import absent, default_device
    from bench.plan import build
    from bench.protocol import Protocol
    from bench.spec import seconds, size

    spec = spec_of(chosen)
    plan = build(spec, default_device=default_device(), absent_devices=absent())
    protocol = Protocol()
    if spec.group_budget_s is not None:
        protocol = replace(protocol, group_budget_s=spec.group_budget_s)
    if spec.precision is not None:
        protocol = replace(protocol, precision=spec.precision)
    if asked := chosen.get("max_memory"):
        protocol = replace(protocol, max_memory=size(asked))
    elif spec.max_memory:
        protocol = replace(protocol, max_memory=spec.max_memory)
    return fit(plan, protocol, seconds(chosen["budget"])) if chosen["budget"] else (plan, protocol)


def load_plugins(paths: Sequence[Path]) -> None:
    """Adds users' files to the catalogue. Raises UserError with what a file raises."""
    from attention_impls import catalogue
    from bench.errors import UserError

    for path in paths:
        try:
            catalogue.load_plugin(path)
        except Exception as error:  # a stranger's file: whatever it raises is for its author to read
            raise UserError(f"--plugin {path}: {type(error).__name__}: {error}") from error


def _model_axes(name: str | None) -> dict[str, list[Any]]:
    if name is None:
        return {}
    from bench.errors import unknown
    from bench.models import models

    if name not in models():
        raise unknown("model", name, models())
    return {axis: [value] for axis, value in models()[name].axes.items()}


def _split(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in value.split(",") if part]
