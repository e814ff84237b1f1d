"""Everything about one name: what it is, its facts, and commands to try."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attention_impls import catalogue
from attention_impls.contract import Parameter, Variant
from bench.devices import all_devices
from bench.errors import UserError, unknown
from bench.inventory import axes_text, exactness, names_of, options, support
from bench.metric import all_metrics
from bench.models import model
from bench.spec import load
from bench.units import show


@dataclass(frozen=True)
class Description:
    """One thing as texts: its kind and name, a text of some lines, facts by name, and commands to try."""

    kind: str
    name: str
    text: str
    facts: Mapping[str, str]
    examples: tuple[str, ...]


def describe(name: str) -> list[Description]:
    """Every thing of that name. Raises UserError with the nearest when there is none."""
    if "." in name or "+" in name:
        return [_subject(name)]
    found = [make(name) for kind, make in _KINDS.items() if name in names_of(kind)]
    if not found:
        raise unknown(f"subject, {', '.join(_KINDS)}", name, names())
    return found


def names() -> list[str]:
    """Every name that can be described, subjects with default options among them."""
    return sorted({*catalogue.implementations(), *(name for kind in _KINDS for name in names_of(kind))})


def _subject(name: str) -> Description:
    try:
        found = catalogue.find(name)
    except (LookupError, ValueError) as error:
        raise UserError(str(error)) from None
    bare = found.bare
    steps = {f"+{t.label}": " ".join(t.doc.split()) for t, _ in (*found.transforms, *found.layer_transforms)}
    layer = {f"+in:{found.layer.name}": " ".join(found.layer.doc.split())} if found.layer else {}
    facts = {
        "computes": f"{found.variant.name}, {exactness(found.variant)}",
        "here": found.missing() or "yes",
        **support(bare),
        "options": ", ".join(options(bare.configure)),
        "back-end": ", ".join(f"{device}: {operator}" for device, operator in bare.backend.items()),
        "source": bare.source,
        **steps,
        **layer,
    }
    examples = (f"attnbench run --subject {found.name}", f"attnbench show {found.variant.name}")
    return Description("subject", str(found.name), _doc(bare.prepare), _told(facts), examples)


def _variant(name: str) -> Description:
    entry = catalogue.entries()[name]
    made = list(entry.make())
    variant = made[0].variant
    text = (entry.module.__doc__ or "").strip()
    return Description("variant", name, text, _variant_facts(variant, entry.family, entry.defaults, made), (
        f"attnbench run --subject '{name}.*'",
        f"attnbench show {name}.{made[0].name}",
    ))  # fmt: skip


def _variant_facts(variant: Variant, family: str, defaults: Mapping[str, Any], made: list[Any]) -> dict[str, str]:
    parameters = {f"parameter {name}": _parameter(p) for name, p in variant.parameters.items()}
    facts = {
        "family": family,
        "formula": variant.formula,
        "computes": exactness(variant),
        "cost": variant.cost,
        "paper": variant.paper,
        "masks": ", ".join(sorted(variant.masks)),
        "couples": ", ".join(sorted(variant.couples)) or "nothing: each query by itself",
        "joins parts by": variant.join,
        "options": ", ".join(f"{option}-{value}" for option, value in defaults.items()),
        "implementations": ", ".join(i.name + ("" if i.missing() is None else " (absent here)") for i in made),
        **parameters,
    }
    return _told(facts)


def _parameter(parameter: Parameter) -> str:
    return f"{parameter.role} [{', '.join(parameter.axes.split())}]"


def _transform(name: str) -> Description:
    t = catalogue.transforms()[name]
    example = f"{name}:{t.example}" if t.example else name
    where = f"softmax.naive+{example}" if t.acts_on == "kernel" else f"softmax.naive+in:multi_head+{example}"
    facts = {
        "acts on": t.acts_on,
        "aims at": t.aims_at,
        "numbers": "changed on purpose, judged by its own rounding in float64" if t.definition else "unchanged",
        "argument": f"as in {example}" if t.example else "none",
    }
    return Description("transform", name, t.doc.strip(), facts, (f"attnbench run --subject {where}",))


def _layer(name: str) -> Description:
    layer = catalogue.layers()[name]
    facts = _told({"options": ", ".join(layer.options)})
    examples = (f"attnbench run --subject softmax.naive+in:{name}",)
    return Description("layer", name, layer.doc.strip(), facts, examples)


def _metric(name: str) -> Description:
    m = all_metrics()[name]
    judged = {
        "timed": "by statistics",
        "exact": "exactly: any change counts",
        "budget": "against its budget",
        "shown": "never, only shown",
    }
    facts = {"unit": m.unit, "better": m.better, "judged": judged.get(m.noise, m.noise), "phase": m.phase}
    examples = (f"attnbench run --metric {name}",) if m.optional else ("attnbench run --suite quick",)
    return Description("metric", name, m.label, facts, examples)


def _suite(name: str) -> Description:
    spec = load(name)
    budget = "" if spec.budget_s is None else show(spec.budget_s, "s")
    sweeps = {f"sweep {i}": _sweep(s.subjects, s.axes, s.why) for i, s in enumerate(spec.sweeps, 1)}
    facts = _told({"budget": budget, "reference": ", ".join(spec.reference), **sweeps})
    examples = (f"attnbench plan --suite {name}", f"attnbench run --suite {name}")
    return Description("suite", name, spec.why, facts, examples)


def _sweep(subjects: tuple[str, ...], axes: Mapping[str, tuple[Any, ...]], why: str) -> str:
    varied = ", ".join(f"{axis} {'|'.join(map(str, values))}" for axis, values in axes.items() if values != (None,))
    return f"{', '.join(subjects)}; {varied}" + (f"; {why}" if why else "")


def _device(name: str) -> Description:
    device = all_devices()[name]
    facts = {"here": device.missing() or "yes", "clocks": ", ".join(device.clocks), "caches": device.caches}
    units = _told({"units": "; ".join(device.units())})
    examples = (f"attnbench run --device {name}",)
    return Description("device", name, _doc(type(device)), facts | units, examples)


def _model(name: str) -> Description:
    m = model(name)
    facts = {"axes": axes_text(m.axes), "source": m.source, "note": m.note}
    return Description("model", name, m.title, facts, (f"attnbench plan --model {name} --q-len 1024",))


def _told(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if value}


def _doc(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__) if thing.__doc__ else ""


_KINDS: dict[str, Callable[[str], Description]] = {
    "variant": _variant,
    "transform": _transform,
    "layer": _layer,
    "metric": _metric,
    "suite": _suite,
    "device": _device,
    "model": _model,
}
