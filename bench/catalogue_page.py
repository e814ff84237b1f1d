"""The catalogue as a page, docs/catalogue.md: every mechanism by family, and what each implementation refuses.

Nothing is run. Refusals are asked on the meta device, as a plan asks them, and costs are those kept in docs/costs.json,
so the page is the same on every machine.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attention_impls import catalogue, inputs
from attention_impls.catalogue import Entry
from attention_impls.contract import Implementation, Variant, Workload
from bench import costs, inventory
from bench.costs import BYTES_OFF, TIME_OVER, Cost
from bench.markdown import code, escape, table
from bench.oracles import LEVELS, held_against

COMMAND = "attnbench list variants --markdown > docs/catalogue.md"
VARIANT_COLUMNS = ("variant", "formula", "computes", "cost", "defined for", "oracle", "weights", "parameters", "paper")
IMPLEMENTATION_COLUMNS = ("implementation", "options", "devices", "refuses", "needs", "time", "bytes", "n")
OUTSIDE = "plugins"  # the family of what is installed beside this package: no part of its page
_BASE = Workload(batch=2, heads=4, kv_heads=4, q_len=256, kv_len=256, head_dim=64, value_dim=64)
_USUAL = tuple((dtype, mask) for dtype in ("f32", "bf16") for mask in ("full", "causal"))


@dataclass(frozen=True)
class Question:
    """Something a call may have. `mask` is joined to the usual one where it begins with "+", else it replaces it."""

    mask: str = ""
    axes: Mapping[str, Any] | None = None
    direction: str = "fwd"

    def workload(self, dtype: str, usual: str) -> Workload:
        """The usual workload, changed by what is asked."""
        joined = self.mask or usual
        if self.mask.startswith("+"):
            joined = self.mask[1:] if usual == "full" else usual + self.mask
        return replace(_BASE, **{"dtype": dtype, **(self.axes or {}), "mask": joined})


MASKS = {
    "no mask": Question("full"),
    "causal": Question("causal"),
    "padding": Question("+padded:0.5"),
    "packed documents": Question("+packed:2"),
    "dense": Question("+dense:0.5"),
    "cross lengths": Question(axes={"kv_len": 512}),
    "decoding": Question("causal:bottom_right", {"q_len": 1}),
}
ASKED = {
    **MASKS,
    "grouped heads": Question(axes={"kv_heads": 2}),
    "value size ≠ head size": Question(axes={"value_dim": 32}),
    **{dtype: Question(axes={"dtype": dtype}) for dtype in ("f64", "f32", "f16", "bf16")},
    "backward": Question(direction="fwdbwd"),
}

_LEVELS = "; ".join(f"{level} {words}" for level, words in LEVELS.items())
_INTRODUCTION = f"""# The catalogue

Written by `{COMMAND}`; do not edit it by hand.

A *variant* is a mechanism: its formula is what every implementation of it is held against, in float64. *exact* means
that it is the mechanism it names; *approximates* names the mechanism whose output it aims at (the distance is a metric
of its own). *defined for* lists masks, and whether there may be more keys than queries (cross lengths) or one query on
a cache (decoding). *oracle* is what the formula itself is held against, and how independent that is:
{_LEVELS}.
*weights* says whether there is a matrix A to show. Axes: B batch, H query heads, G key/value heads, I queries, J keys,
D head size, E value size; a parameter's other letters are sizes of its own.

An *implementation* computes a variant. What it *refuses* is asked at default options, 256 tokens and head size 64, of
calls that the variant itself is defined for; a refused cell is stored as `unsupported` with its sentence.
`attnbench show NAME` tells more of each.

*time* and *bytes* are exponents of n = I = J: what is claimed, and after the colon what `attnbench costs` fitted over
*n* (one forward on one CPU thread, head size 64; bytes of the peak above the inputs, without what was prepared). Bytes
are fitted to the last two octaves, as fixed + b·nᵖ, and lie within {BYTES_OFF:g} of the claim; time is fitted to the
last three and is at most {TIME_OVER:g} above it. "≤ 2" is what an implementation that claims nothing is held to.
`docs/costs.json` holds every length, and why no longer one was measured."""


def page() -> str:
    """The whole page, without a newline at its end."""
    families: dict[str, dict[str, Entry]] = {}
    for name, entry in sorted(catalogue.entries().items()):
        families.setdefault(entry.family, {})[name] = entry
    kept = costs.read()
    parts = [_family(family, families[family], kept) for family in sorted(families) if family != OUTSIDE]
    return "\n\n".join([_INTRODUCTION, *parts, _composed(), _elsewhere()])


def _family(family: str, entries: Mapping[str, Entry], kept: Mapping[str, Cost]) -> str:
    made = {name: list(entry.make()) for name, entry in entries.items()}
    variants = [_variant(name, made[name][0].variant, entry) for name, entry in entries.items()]
    implementations = [_implementation(name, i, kept) for name, found in made.items() for i in found]
    return "\n\n".join(
        (
            f"## {family}",
            table(VARIANT_COLUMNS, variants),
            table(IMPLEMENTATION_COLUMNS, implementations),
        )
    )


def _variant(name: str, variant: Variant, entry: Entry) -> list[str]:
    given = [f"{code(n)} {p.role} [{' '.join(p.axes.split())}]" for n, p in variant.parameters.items()]
    options = [f"option {code(f'{option}-{value}')}" for option, value in entry.defaults.items()]
    facts = (inventory.exactness(variant), variant.cost, ", ".join(defined(variant)), held_against(name))
    shown = "yes" if variant.weights is not None else "no"
    parameters = ", ".join(given + options)
    return [code(name), code(variant.formula), *map(escape, facts), shown, parameters, escape(variant.paper)]


def _implementation(name: str, i: Implementation, kept: Mapping[str, Cost]) -> list[str]:
    options = ", ".join(map(code, inventory.options(i.configure)))
    needs = ", ".join(need.what for need in i.support.needs)
    devices = ", ".join(sorted(i.support.devices))
    whole = f"{name}.{i.name}"
    return [code(whole), options, devices, escape(_told(i)), escape(needs), *_growth(i, kept.get(whole))]


def _growth(i: Implementation, cost: Cost | None) -> tuple[str, str, str]:
    """What is claimed and fitted of time and bytes, and the lengths; the claim alone where nothing was measured."""
    claims = costs.claimed(i.growth)
    fixed = f" ({escape(i.growth.at)})" if i.growth and i.growth.at else ""
    if cost is None:
        return claims[0] + fixed, claims[1], "not measured"
    fits = costs.exponents((cost.time_exponent, cost.bytes_exponent))
    return f"{claims[0]}{fixed}: {fits[0]}", f"{claims[1]}: {fits[1]}", cost.range


def defined(variant: Variant) -> list[str]:
    """The words of MASKS for which a mechanism has a meaning."""
    return [word for word, asked in MASKS.items() if _meant(variant, asked)]


def _meant(variant: Variant, asked: Question) -> bool:
    workloads = (asked.workload("f32", usual) for usual in ("full", "causal"))
    return any(variant.undefined(inputs.draw(variant, w, device="meta")) is None for w in workloads)


def _told(i: Implementation) -> str:
    """What it refuses, once where its devices agree, else device by device."""
    found = {device: ", ".join(refused(i, device)) for device in sorted(i.support.devices)}
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return "; ".join(f"{device}: {words}" for device, words in found.items() if words)


def refused(i: Implementation, device: str) -> list[str]:
    """The words of ASKED that an implementation refuses though its variant is defined for them; one for all of them."""
    meant = [word for word, asked in ASKED.items() if _meant(i.variant, asked)]
    found = [word for word in meant if not _taken(i, device, ASKED[word])]
    return ["everything"] if found == meant else found


def _taken(i: Implementation, device: str, asked: Question) -> bool:
    """Whether any of the usual calls, with what is asked, is not refused."""
    workloads = (asked.workload(dtype, usual) for dtype, usual in _USUAL)
    calls = (inputs.draw(i.variant, w, device="meta", place=device) for w in workloads)
    return any(i.refuses(call, asked.direction) is None for call in calls)


def _composed() -> str:
    """What goes around any implementation."""
    transforms = _rows(inventory.transforms(), ("transform", "acts on", "aims at", "does"))
    layers = _rows(inventory.layers(), ("layer", "options", "is"))
    return f"## Around any implementation\n\n{transforms}\n\n{layers}"


def _rows(rows: Iterable[Mapping[str, str]], columns: tuple[str, ...]) -> str:
    first, *others = columns
    return table(columns, [[code(row[first]), *(escape(row[name]) for name in others)] for row in rows])


def elsewhere() -> list[dict[str, str]]:
    """What people look for under a name that is no variant's: name, is ("noun thing", or "not here"), why."""
    found: list[dict[str, str]] = tomllib.loads((Path(__file__).parent / "elsewhere.toml").read_text("utf-8"))["name"]
    return found


def _elsewhere() -> str:
    rows = [[escape(row["name"]), _place(row["is"]), row["why"]] for row in elsewhere()]
    return f"## Under another noun, or not here\n\n{table(('looked for', 'is', 'how'), rows)}"


def _place(text: str) -> str:
    noun, _, thing = text.partition(" ")
    return text if text == "not here" else f"{noun} {code(thing)}"
