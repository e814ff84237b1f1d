"""What there is to choose from, as rows of texts: one function a noun, in the order people meet them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attention_impls import catalogue
from attention_impls.contract import Implementation, Variant
from bench.devices import all_devices
from bench.metric import all_metrics
from bench.models import models as all_models
from bench.spec import load, suite_names
from bench.units import show

Row = dict[str, str]


def variants() -> list[Row]:
    """Mechanisms by family: whether exact, what they cost, their implementations, and which are absent here."""
    found = []
    for entry_name, entry in sorted(catalogue.entries().items(), key=lambda item: (item[1].family, item[0])):
        made = list(entry.make())
        variant = made[0].variant
        found.append(
            {
                "family": entry.family,
                "variant": entry_name,
                "computes": exactness(variant),
                "cost": variant.cost,
                "implementations": ", ".join(i.name for i in made if not i.missing()),
                "absent": "\n".join(f"{i.name}: {why}" for i in made if (why := i.missing())),
            }
        )
    return found


def exactness(variant: Variant) -> str:
    """Whether a mechanism is what it says or stands in for another."""
    return f"approximates {variant.approximates}" if variant.approximates else "exact"


def implementations() -> list[Row]:
    """Every implementation with default options, and what it supports."""
    return [
        {"implementation": f"{name}.{i.name}", **support(i), "here": i.missing() or "yes"}
        for name, entry in catalogue.entries().items()
        for i in entry.make()
    ]


def support(implementation: Implementation) -> Row:
    """What an implementation can be asked for."""
    told = implementation.support
    yes = {"grouped heads": told.grouped_heads, "cross": told.cross, "value size": told.value_dim}
    return {
        "devices": ", ".join(sorted(told.devices)),
        "dtypes": ", ".join(sorted(told.dtypes)),
        "masks": ", ".join(sorted(told.masks)),
        "directions": "fwd, fwdbwd" if told.backward else "fwd",
        "also": ", ".join(word for word, given in yes.items() if given),
        "lse": told.lse,
    }


def options(configure: Callable[..., Implementation] | None) -> list[str]:
    """What an implementation can be told, with the defaults, as they stand in its name: "block-64"."""
    if configure is None:
        return []
    return [f"{p.name}-{p.default}" for p in inspect.signature(configure).parameters.values()]


def transforms() -> list[Row]:
    """Memory and number optimisations: what each acts on and aims at."""
    return [
        {
            "transform": t.label if t.example is None else f"{t.label}:{t.example}",
            "acts on": t.acts_on,
            "aims at": t.aims_at,
            "does": first_sentence(t.doc),
            "here": next((why for need in t.needs if (why := need.missing())), "yes"),
        }
        for t in catalogue.transforms().values()
    ]


def layers() -> list[Row]:
    """Modules with projections around any implementation."""
    return [
        {"layer": f"+in:{layer.name}", "options": ", ".join(layer.options), "is": first_sentence(layer.doc)}
        for layer in catalogue.layers().values()
    ]


def metrics() -> list[Row]:
    """What is recorded of a cell, and how each number is judged."""
    return [
        {
            "metric": m.name,
            "unit": m.unit,
            "better": m.better,
            "judged as": m.noise,
            "taken": "only when asked for" if m.optional else f"in phase {m.phase}",
            "is": m.label,
        }
        for m in all_metrics().values()
    ]


def suites() -> list[Row]:
    """Sweeps that come with the package."""
    found = []
    for name in suite_names():
        spec = load(name)
        budget = "" if spec.budget_s is None else show(spec.budget_s, "s")
        found.append({"suite": name, "budget": budget, "reference": ", ".join(spec.reference), "why": spec.why})
    return found


def devices() -> list[Row]:
    """Kinds of device, and whether one is here."""
    return [
        {"device": d.name, "here": d.missing() or "yes", "units": "; ".join(d.units()), "clocks": ", ".join(d.clocks)}
        for d in all_devices().values()
    ]


def models() -> list[Row]:
    """Published models whose shapes `--model` takes."""
    return [
        {"model": m.name, "title": m.title, "axes": axes_text(m.axes), "source": m.source}
        for m in all_models().values()
    ]


def axes_text(axes: Mapping[str, Any]) -> str:
    """Axes as they are read aloud: "heads 12, q_len 1024"."""
    return ", ".join(f"{axis} {value}" for axis, value in axes.items())


def first_sentence(text: str) -> str:
    """The text up to its first full stop, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


NOUNS = {
    "variants": variants,
    "implementations": implementations,
    "transforms": transforms,
    "layers": layers,
    "metrics": metrics,
    "suites": suites,
    "devices": devices,
    "models": models,
}


def names_of(kind: str) -> list[str]:
    """Names taken by a kind of thing: "variant", "transform", "layer", "metric", "suite", "device", "model"."""
    known: dict[str, Callable[[], Iterable[str]]] = {
        "variant": catalogue.entries,
        "transform": catalogue.transforms,
        "layer": catalogue.layers,
        "metric": all_metrics,
        "suite": suite_names,
        "device": all_devices,
        "model": all_models,
    }
    return list(known[kind]())
