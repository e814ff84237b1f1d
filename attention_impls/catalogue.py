"""Finds every entrant by walking the folders, and builds a subject from its name.

A file in variants/ holds IMPLEMENTATIONS or implementations(**options); in transforms/ TRANSFORM; in
layers/ LAYER; in peers/ IMPLEMENTATIONS. A file without its noun is an error that names both.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attention_impls import names
from attention_impls.contract import UNKNOWN, Implementation, Layer, Transform, Variant
from attention_impls.names import SubjectName

ENTRY_POINTS = "attnbench.plugins"  # group under which installed packages offer modules with IMPLEMENTATIONS


class UnknownNameError(LookupError):
    """A name nobody has; the message gives the nearest one."""


class MissingNounError(TypeError):
    """A module in one of the folders that lacks what the folder is for."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One file's offer: a family (its folder), and a factory of implementations with its option defaults."""

    family: str
    module: ModuleType
    make: Callable[..., Iterable[Implementation]]
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Subject:
    """What is measured: an implementation under its transforms, bare or inside a layer.

    `bare` is the implementation before any transform, `inner` the transformed one, `layer` the layer
    around it, if any; `transforms` and `layer_transforms` pair each transform with its argument.
    """

    name: SubjectName
    family: str
    bare: Implementation
    inner: Implementation
    transforms: tuple[tuple[Transform, str | None], ...] = ()
    layer: Layer | None = None
    layer_transforms: tuple[tuple[Transform, str | None], ...] = ()

    @property
    def variant(self) -> Variant:
        """The mechanism, before any transform that changes numbers on purpose."""
        return self.bare.variant

    @property
    def definition(self) -> Variant:
        """What it is judged against: the mechanism with the stated rounding of its transforms."""
        defined = self.variant
        for transform, argument in self.transforms:
            if transform.definition is not None:
                defined = transform.definition(defined, argument)
        return defined

    def missing(self) -> str | None:
        """A sentence when something it needs is not on this machine."""
        needs = [n for t, _ in (*self.transforms, *self.layer_transforms) for n in t.needs]
        found = (text for need in needs if (text := need.missing()))
        return self.bare.missing() or next(found, None)


@cache
def entries() -> dict[str, Entry]:
    """Every variant's entry by the variant's name, in folder order; peers and plugins add to it."""
    import attention_impls.peers
    import attention_impls.variants

    found: dict[str, list[Entry]] = {}
    for module in _modules(attention_impls.variants):
        _offer(found, module, module.__name__.split(".")[-2])
    for module in _modules(attention_impls.peers):
        _offer(found, module, "peers")
    for module in (*_installed_plugins(), *_loaded.values()):
        _offer(found, module, "plugins")
    return {name: _joined(name, offers) for name, offers in found.items()}


@cache
def transforms() -> dict[str, Transform]:
    """Every transform by its label."""
    import attention_impls.transforms

    return {t.label: t for t in _nouns(attention_impls.transforms, "TRANSFORM", Transform)}


@cache
def layers() -> dict[str, Layer]:
    """Every layer by its name."""
    import attention_impls.layers

    return {layer.name: layer for layer in _nouns(attention_impls.layers, "LAYER", Layer)}


_loaded: dict[str, ModuleType] = {}


def load_plugin(path: Path) -> None:
    """Adds a file with IMPLEMENTATIONS to the catalogue.

    Raises FileNotFoundError, what the file itself raises, or MissingNounError where it lacks the noun.
    """
    name = f"attnbench_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    _factory(module)
    _loaded[str(path.resolve())] = module
    entries.cache_clear()


def implementations(variant: str | None = None) -> list[str]:
    """Names of every bare implementation with default options, or of one variant's."""
    chosen = entries() if variant is None else {variant: _entry(variant)}
    return [f"{name}.{i.name}" for name, entry in chosen.items() for i in entry.make()]


def find(text: str | SubjectName) -> Subject:
    """The subject that a name names. Raises BadNameError for bad grammar, UnknownNameError with the nearest name,
    ValueError for an option or argument that makes no sense."""
    name = names.parse(text) if isinstance(text, str) else text
    entry = _entry(name.variant)
    options = _values(name.variant, entry.defaults, dict(name.variant_options))
    made = {i.name: i for i in entry.make(**options)}
    bare = made.get(name.implementation)
    if bare is None:
        raise UnknownNameError(_unknown(f"implementation of {name.variant}", name.implementation, made))
    set_options: dict[str, Any] = {}
    if name.implementation_options:
        bare, set_options = _configured(name, bare)
    layer, layer_options = _layer(name)
    name = replace(
        name,
        variant_options=_canonical(entry.defaults, options),
        implementation_options=_canonical(_defaults(bare.configure), set_options),
        layer_options=_canonical(_defaults(layer.configure), layer_options) if layer else (),
    )
    inside = tuple((_transform(step.label, "kernel"), step.argument) for step in name.transforms)
    outside = tuple((_transform(step.label, "layer"), step.argument) for step in name.layer_transforms)
    inner = _wrapped(bare, inside)
    return Subject(name, entry.family, bare, inner, inside, layer, outside)


def _wrapped(bare: Implementation, steps: Iterable[tuple[Transform, str | None]]) -> Implementation:
    made = bare
    for transform, argument in steps:
        if transform.wrap is None:
            raise ValueError(f"transform {transform.label} cannot wrap a kernel")
        inner = transform.wrap(made, argument)
        ours = UNKNOWN if inner.footprint is made.footprint else inner.footprint  # what it wraps has other bytes
        made = replace(inner, name=f"{made.name}+{names.Step(transform.label, argument)}", footprint=ours)
    return made


def _configured(name: SubjectName, bare: Implementation) -> tuple[Implementation, dict[str, Any]]:
    if bare.configure is None:
        raise ValueError(f"{name.variant}.{bare.name} takes no options")
    options = _values(f"{name.variant}.{bare.name}", _defaults(bare.configure), dict(name.implementation_options))
    return bare.configure(**options), options


def _values(owner: str, defaults: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Given texts as values of the defaults' types. Raises for unknown options and unreadable values."""
    values = dict(defaults)
    for option, text in given.items():
        if option not in defaults:
            raise UnknownNameError(_unknown(f"option of {owner}", option, defaults))
        try:
            values[option] = type(defaults[option])(text)
        except ValueError:
            kind = type(defaults[option]).__name__
            raise ValueError(f"option {option} of {owner} must be a {kind}; got {text!r}") from None
    return values


def _canonical(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> names.Options:
    return tuple((n, str(values[n])) for n in defaults if n in values and values[n] != defaults[n])


def _defaults(make: Callable[..., Any] | None) -> dict[str, Any]:
    if make is None:
        return {}
    return {p.name: p.default for p in inspect.signature(make).parameters.values()}


def _entry(variant: str) -> Entry:
    if variant not in entries():
        raise UnknownNameError(_unknown("variant", variant, entries()))
    return entries()[variant]


def _transform(label: str, acts_on: str) -> Transform:
    if label not in transforms():
        raise UnknownNameError(_unknown("transform", label, transforms()))
    found = transforms()[label]
    if found.acts_on != acts_on:
        place = "after +in:layer" if found.acts_on == "layer" else "before +in:layer"
        raise ValueError(f"transform {label} acts on a {found.acts_on}: it belongs {place}")
    return found


def _layer(name: SubjectName) -> tuple[Layer | None, dict[str, Any]]:
    if name.layer is None:
        return None, {}
    if name.layer not in layers():
        raise UnknownNameError(_unknown("layer", name.layer, layers()))
    layer = layers()[name.layer]
    options = _values(name.layer, _defaults(layer.configure), dict(name.layer_options))
    return (layer.configure(**options) if layer.configure else layer), options


def _unknown(kind: str, word: str, known: Iterable[str]) -> str:
    listed = sorted(known)
    near = difflib.get_close_matches(word, listed, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(listed)}"
    return f"no {kind} called {word!r}; {hint}"


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    """Every entrant module below a package: a file, or a package that itself has the noun."""
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        module = importlib.import_module(info.name)
        if info.ispkg and not _has_noun(module):
            yield from _modules(module)
        else:
            yield module


def _has_noun(module: ModuleType) -> bool:
    return hasattr(module, "IMPLEMENTATIONS") or hasattr(module, "implementations")


def _factory(module: ModuleType) -> tuple[Callable[..., Iterable[Implementation]], dict[str, Any]]:
    make = getattr(module, "implementations", None)
    if callable(make):
        return make, _defaults(make)
    listed = getattr(module, "IMPLEMENTATIONS", None)
    if not listed:
        raise MissingNounError(
            f"{module.__file__}: expected IMPLEMENTATIONS (a list) or implementations(**options) in a variant file"
        )
    return (lambda: list(listed)), {}


def _offer(found: dict[str, list[Entry]], module: ModuleType, family: str) -> None:
    make, defaults = _factory(module)
    for variant in dict.fromkeys(i.variant.name for i in make()):

        def of_variant(variant: str = variant, /, **options: Any) -> list[Implementation]:
            return [i for i in make(**options) if i.variant.name == variant]

        found.setdefault(variant, []).append(Entry(family, module, of_variant, defaults))


def _joined(name: str, offers: list[Entry]) -> Entry:
    """One entry from all files that implement a variant; text and options are those of the file named after it."""
    first, *others = sorted(offers, key=lambda offer: offer.module.__name__.rpartition(".")[2] != name)
    if not others:
        return first

    def make(**options: Any) -> list[Implementation]:
        """Other files implement the variant under those options that they take too; by default where they take none."""
        changed = {option for option, default in first.defaults.items() if options.get(option, default) != default}
        made = list(first.make(**options))
        for other in (o for o in others if changed <= o.defaults.keys()):
            made += other.make(**{option: options[option] for option in other.defaults if option in options})
        twice = [i for i, count in Counter(i.name for i in made).items() if count > 1]
        if twice:
            raise ValueError(f"two implementations are called {name}.{twice[0]}; rename one")
        return made

    return replace(first, make=make)


def _nouns(package: ModuleType, noun: str, kind: type) -> list[Any]:
    found = []
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        value = getattr(importlib.import_module(info.name), noun, None)
        if not isinstance(value, kind):
            raise MissingNounError(f"{info.name.replace('.', '/')}.py: expected {noun}, a {kind.__name__}")
        found.append(value)
    return found


def _installed_plugins() -> list[ModuleType]:
    return [point.load() for point in entry_points(group=ENTRY_POINTS)]
