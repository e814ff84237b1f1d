"""The grammar of names: one function parses a subject's name, one prints it again.

    variant{:option-value}.implementation{:option-value}{+transform{:argument}}[+in:layer{:option-value}{+transform{:argument}}]

Names are [a-z][a-z0-9_]*, values -?[a-z0-9_.]+; an option is split at its first "-"; the implementation
begins after a "." that a letter follows. Left to right is inside to outside; defaults are left out.
Only characters that pytest's -k and a shell leave alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
VALUE = re.compile(r"-?[a-z0-9_.]+\Z")
_SPLIT = re.compile(r"\.(?=[a-z])")

Options = tuple[tuple[str, str], ...]


class BadNameError(ValueError):
    """A name that is not in the grammar; the message says which part."""


@dataclass(frozen=True)
class Step:
    """One transform of a name: its label and its argument, if any."""

    label: str
    argument: str | None = None

    def __str__(self) -> str:
        return self.label if self.argument is None else f"{self.label}:{self.argument}"


@dataclass(frozen=True)
class SubjectName:
    """The parts of a subject's name, inside to outside."""

    variant: str
    implementation: str
    variant_options: Options = ()
    implementation_options: Options = ()
    transforms: tuple[Step, ...] = ()
    layer: str | None = None
    layer_options: Options = ()
    layer_transforms: tuple[Step, ...] = field(default=())

    @property
    def kernel(self) -> str:
        """The name without its layer."""
        head = f"{self.variant}{_options(self.variant_options)}.{self.implementation}"
        return head + _options(self.implementation_options) + _steps(self.transforms)

    def __str__(self) -> str:
        if self.layer is None:
            return self.kernel
        return f"{self.kernel}+in:{self.layer}{_options(self.layer_options)}{_steps(self.layer_transforms)}"


def parse(text: str) -> SubjectName:
    """The parts of a name. Raises BadNameError, naming the part that does not fit."""
    head, *tail = text.split("+")
    inside, outside, layer = _tail(text, tail)
    parts = _SPLIT.split(head, maxsplit=1)
    if len(parts) != 2:
        raise BadNameError(f"{text!r} names no implementation; expected variant.implementation, as in softmax.naive")
    variant, variant_options = _named(text, parts[0])
    implementation, implementation_options = _named(text, parts[1])
    layer_name, layer_options = _named(text, layer) if layer is not None else (None, ())
    return SubjectName(
        variant,
        implementation,
        variant_options,
        implementation_options,
        inside,
        layer_name,
        layer_options,
        outside,
    )


def _tail(text: str, words: list[str]) -> tuple[tuple[Step, ...], tuple[Step, ...], str | None]:
    at = next((i for i, word in enumerate(words) if word.startswith("in:")), None)
    if at is None:
        return tuple(_step(text, word) for word in words), (), None
    if any(word.startswith("in:") for word in words[at + 1 :]):
        raise BadNameError(f"{text!r} names two layers; a layer goes around a kernel, not around another layer")
    inside = tuple(_step(text, word) for word in words[:at])
    outside = tuple(_step(text, word) for word in words[at + 1 :])
    return inside, outside, words[at].removeprefix("in:")


def _step(text: str, word: str) -> Step:
    label, colon, argument = word.partition(":")
    if not NAME.match(label) or (colon and not VALUE.match(argument)):
        raise BadNameError(
            f"{text!r}: {word!r} is no transform; expected label or label:argument, as in query_chunks:128"
        )
    return Step(label, argument if colon else None)


def _named(text: str, part: str) -> tuple[str, Options]:
    name, *words = part.split(":")
    if not NAME.match(name):
        raise BadNameError(f"{text!r}: {name!r} is no name; names are a-z, then a-z, 0-9 and _")
    return name, tuple(_option(text, word) for word in words)


def _option(text: str, word: str) -> tuple[str, str]:
    name, dash, value = word.partition("-")
    if not dash or not NAME.match(name) or not VALUE.match(value):
        raise BadNameError(f"{text!r}: {word!r} is no option; expected option-value, as in window-256")
    return name, value


def _options(options: Iterable[tuple[str, str]]) -> str:
    return "".join(f":{name}-{value}" for name, value in options)


def _steps(steps: Iterable[Step]) -> str:
    return "".join(f"+{step}" for step in steps)
