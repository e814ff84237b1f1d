"""The words everything here is written in: workload, parameter, variant, support, implementation, transform, layer.

A variant says what a mechanism is (rows of its matrix A, in whatever dtype the call has: float64 makes
it the oracle, bfloat16 the yardstick). An implementation computes the same output some other way.
Axes: B batch, H query heads, G key/value heads, I queries, J keys, D head size, E value size, M model width.
Layout is always logical [B, H, I, D]; a kernel's own layout is only the stride order its inputs are born in.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from attention_impls.call import Call
from attention_impls.mask import Pattern
from attention_impls.needs import Need
from attention_impls.training import OPTIMISERS

CONTRACT_VERSION = 1  # raised when a kernel written for the older words would mean something else

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "tf32": torch.float32,  # the same tensors; matrix products may round their inputs to 10 bits (CUDA only)
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
DIRECTIONS = ("fwd", "fwdbwd", *OPTIMISERS)
MASK_WORDS = frozenset({"full", "causal", "key_lengths", "segments", "dense", "pattern", "empty_rows"})
START_WORDS = frozenset({"zero", "aligned", "any", "per_sequence", "per_token"})
POLICY = "by choice: "  # begins the sentence of a refusal that is a decision and no inability

Lse = Literal["no", "value", "differentiable"]
Join = Literal["lse", "sum", "none"]
Role = Literal["weight", "token", "constant", "random"]


@dataclass(frozen=True)
class Workload:
    """The shape and kind of a call: plain, hashable, JSON. `mask` is text in the language of `inputs.build_mask`."""

    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    q_len: int = 1024
    kv_len: int = 1024
    head_dim: int = 64
    value_dim: int = 64
    dtype: str = "f32"
    mask: str = "full"
    inputs: str = "normal"

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.batch < 0:
            raise ValueError(f"batch must not be negative; got {self.batch}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.dtype not in DTYPES:
            raise ValueError(f"no dtype called {self.dtype!r}; known: {', '.join(DTYPES)}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of q, k, v and the output."""
        return DTYPES[self.dtype]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with every axis."""
        return asdict(self)


@dataclass(frozen=True)
class Parameter:
    """Whatever a mechanism needs beyond q, k, v.

    axes: letters of the workload ("H", "B H J", "H I J") or own letters, whose sizes come from
    `sizes`: a number, the name of the letter it equals, or a function of the workload. role: weight (learned),
    token (a function of x: gates), constant, random. draw(generator, shape) -> float32 (or integer)
    CPU tensor, standard normal by default. dtype: "workload", or a torch dtype's name when rounding it
    would change the function (decays, indices). squash turns a projection of x into a token parameter
    inside a layer. Anything that depends on H, I or J is a Parameter or an option, never read off a slice.
    """

    axes: str
    role: Role
    draw: Callable[[torch.Generator, tuple[int, ...]], Tensor] | None = None
    sizes: Mapping[str, int | str | Callable[[Workload], int]] = field(default_factory=dict)
    dtype: str = "workload"
    squash: Callable[[Tensor], Tensor] | None = None

    @property
    def learned(self) -> bool:
        """True when a gradient is asked of it."""
        return self.role in ("weight", "token")

    def shape(self, workload: Workload) -> tuple[int, ...]:
        """Its size on every axis for a workload. Raises ValueError for a letter nobody gave a size."""
        known: dict[str, int] = {
            "B": workload.batch,
            "H": workload.heads,
            "G": workload.kv_heads,
            "I": workload.q_len,
            "J": workload.kv_len,
            "D": workload.head_dim,
            "E": workload.value_dim,
        }

        def size(letter: str) -> int:
            given = self.sizes.get(letter)
            if isinstance(given, int):
                return given
            if callable(given):
                return given(workload)
            name = given if given is not None else letter
            if name not in known:
                raise ValueError(f"axis {letter!r} of a parameter with axes {self.axes!r} has no size")
            return known[name]

        return tuple(size(letter) for letter in self.axes.split())


def default_scale(head_dim: int) -> float:
    """1/sqrt(D), the scale of scaled dot-product attention."""
    return 1.0 / math.sqrt(head_dim)


Rows = Callable[[Call, Tensor], Tensor]
"""(the whole call with heads expanded, row indices [R]) -> [B, H, R, J] weights, or [B, H, R, E] output."""


@dataclass(frozen=True, eq=False)
class Variant:
    """What a mechanism is. Exactly one of `weights` (rows of A) and `output` (where A does not exist).

    couples: which of queries, keys, heads a row depends on beyond its own: transforms decide by it.
    join: how results over disjoint key sets combine. masks: words of MASK_WORDS it is defined for.
    continuous: False where a small change of inputs may choose other keys (top-k, hashes).
    lse(call, rows) -> [B, H, R] where rows are softmaxes. finish(out [B, H, R, E], call, rows) -> out is
    applied to A·v. oracle(call, rows) -> out is an optional faster float64 form that conformance
    holds to `weights`. approximates names the variant whose output it aims at. pattern: pairs it hides
    beyond the call's mask, so that what is visible can be counted (`makers.variant_over` sets it).
    """

    name: str
    weights: Rows | None = None
    output: Rows | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    couples: frozenset[str] = frozenset()
    join: Join = "none"
    masks: frozenset[str] = MASK_WORDS
    continuous: bool = True
    row_stochastic: bool = True
    self_only: bool = False
    lse: Rows | None = None
    finish: Callable[[Tensor, Call, Tensor], Tensor] | None = None
    oracle: Rows | None = None
    scale: Callable[[int], float] = default_scale
    why_not: Callable[[Call], str | None] | None = None
    pattern: Pattern | None = None
    paper: str = ""
    formula: str = ""
    cost: str = ""
    approximates: str = ""

    def __post_init__(self) -> None:
        if (self.weights is None) == (self.output is None):
            raise ValueError(f"variant {self.name!r} must define exactly one of weights and output")
        taken = sorted({"q", "k", "v"} & set(self.parameters))
        if taken:
            raise ValueError(
                f"variant {self.name!r}: parameter {taken[0]!r} has the name of an input; call it otherwise"
            )

    def undefined(self, call: Call) -> str | None:
        """A sentence when the mechanism itself has no meaning for this call, else None: its own reason first."""
        own = self.why_not(call) if self.why_not else None
        if own:
            return own
        extra = call.mask.kinds() - self.masks
        if extra:
            return f"{self.name} is not defined under a {', '.join(sorted(extra))} mask"
        if self.self_only and call.q.shape[2] != call.k.shape[2]:
            return f"{self.name} is self-attention: it needs as many keys as queries"
        return None


class Output(NamedTuple):
    """What a run returns: out [B, H, I, E] in q's dtype; lse [B, H, I] (natural log) when it was asked for."""

    out: Tensor
    lse: Tensor | None = None


Run = Callable[[Call], Output]
Prepare = Callable[[Call, bool], Run]


@dataclass(frozen=True)
class Support:
    """What an implementation can be asked for. A word missing here is a refusal with a sentence.

    masks: words of MASK_WORDS, where empty_rows means that queries without any visible key come out
    right; starts: words of START_WORDS. grouped_heads: G < H. cross: J != I. value_dim: E != D.
    lse: whether it can return the log-sum-exp, and whether that is differentiable.
    """

    devices: frozenset[str] = frozenset({"cpu", "cuda"})
    dtypes: frozenset[str] = frozenset(DTYPES)
    masks: frozenset[str] = MASK_WORDS
    starts: frozenset[str] = START_WORDS
    grouped_heads: bool = True
    cross: bool = True
    value_dim: bool = True
    backward: bool = True
    lse: Lse = "no"
    needs: tuple[Need, ...] = ()
    why_not: Callable[[Call], str | None] | None = None

    def refuses(self, call: Call, direction: str) -> str | None:
        """A sentence naming what cannot be done, or None. Asked of shapes alone: works on meta tensors."""
        q, k, v, mask = call.q, call.k, call.v, call.mask
        extra = mask.kinds() - self.masks
        if extra:
            return f"cannot be told a {', '.join(sorted(extra))} mask"
        if mask.causal and mask.start() not in self.starts and not _square(mask):
            return f"cannot be told where queries stand ({mask.start()} start)"
        if "empty_rows" not in self.masks and mask.has_empty_rows:
            return "is not right for queries that see no key"
        if dtype_name(q.dtype) not in self.dtypes:
            return f"does not take {dtype_name(q.dtype)}; takes {', '.join(sorted(self.dtypes))}"
        if not self.grouped_heads and q.shape[1] != k.shape[1]:
            return f"needs as many key/value heads as query heads ({q.shape[1]} over {k.shape[1]})"
        if not self.cross and q.shape[2] != k.shape[2]:
            return f"needs as many keys as queries ({q.shape[2]} queries, {k.shape[2]} keys)"
        if not self.value_dim and q.shape[3] != v.shape[3]:
            return f"needs value size = head size ({v.shape[3]} against {q.shape[3]})"
        if direction != "fwd" and not self.backward:
            return "has no backward"
        return self.why_not(call) if self.why_not else None


def _square(mask: Any) -> bool:
    return bool(mask.q_len == mask.kv_len and not isinstance(mask.q_start, Tensor) and mask.q_start == mask.k_start)


def dtype_name(dtype: torch.dtype) -> str:
    """f64, f32, f16 or bf16 for a torch dtype; torch's own name for any other."""
    return next((name for name, known in DTYPES.items() if known is dtype), str(dtype).removeprefix("torch."))


@dataclass(frozen=True)
class Growth:
    """What a forward is claimed to cost as n = I = J grows, all else at its default: the exponents of n.

    time is an upper bound; bytes are those of the peak above the inputs, the output among them, so 1 is the least.
    `at` says what stays fixed for that (a window, a number of landmarks), or which factor the exponent leaves out.
    """

    time: float = 2.0
    bytes: float = 2.0
    at: str = ""


@dataclass(frozen=True)
class Footprint:
    """Bytes above the inputs on one CPU thread, written out: of a workload in float32 under a full mask.

    peak(workload): the most alive at once in a forward without gradients; peak_lse: the same where the log-sum-exp is
    asked for too. held(workload): what a forward keeps for its backward, its output included. None where nobody has
    written it down, or it depends on more than the workload.
    """

    peak: Callable[[Workload], int] | None = None
    held: Callable[[Workload], int] | None = None
    peak_lse: Callable[[Workload], int] | None = None


UNKNOWN = Footprint()
QUADRATIC = Growth()  # what an implementation that claims nothing is held to, as a bound in both


@dataclass(frozen=True, eq=False)
class Implementation:
    """One way to compute a variant.

    prepare(call, lse) -> run makes every decision (masks, page tables, compilation) from shapes, the
    mask and constant parameters, never from values of q, k, v, weights or tokens; run(call) -> Output
    decides nothing and is called with other values of the same shapes. `refusal` replaces the question
    to `support` (transforms ask every part). configure(**options) -> Implementation gives the same with
    other options (block sizes); `backend` is part of the operator's name that must be seen to run,
    per device. `layout` is the stride order in which its inputs are born. `growth` claims what it costs,
    where that is not QUADRATIC; `attnbench costs` holds it to what it says. `footprint` gives its bytes by formula.

    Decoding from a cache: prefill(call) digests the keys that stand before the call's first query, and
    resume(call, cache) gives what run(call) gives, reading of k, v and token parameters the rest only.
    """

    name: str
    variant: Variant
    prepare: Prepare
    support: Support = field(default_factory=Support)
    layout: str = "B H I D"
    prefill: Callable[[Call], Any] | None = None
    resume: Callable[[Call, Any], Output] | None = None
    refusal: Callable[[Call, str], str | None] | None = None
    configure: Callable[..., Implementation] | None = None
    backend: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    growth: Growth | None = None
    footprint: Footprint = UNKNOWN

    def missing(self) -> str | None:
        """A sentence when a package or compiler it needs is not here."""
        return next((text for need in self.support.needs if (text := need.missing())), None)

    def refuses(self, call: Call, direction: str = "fwd") -> str | None:
        """Why this call cannot be done, or None. Reads shapes and the mask, never a value of q, k, v."""
        if call.where not in self.support.devices and call.where != "meta":
            return f"does not run on {call.where}; runs on {', '.join(sorted(self.support.devices))}"
        undefined = self.variant.undefined(call)
        if undefined:
            return undefined
        return (self.refusal or self.support.refuses)(call, direction)


@dataclass(frozen=True)
class Evidence:
    """What one step was seen to do: operator counts and dtypes by phase; `facts` from the run itself."""

    forward: Counter[str]
    backward: Counter[str]
    dtypes: Mapping[str, frozenset[str]]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Applied(NamedTuple):
    """Whether a transform really happened, with a sentence that says what was seen."""

    ok: bool
    text: str


@dataclass(frozen=True, eq=False)
class Transform:
    """Turns an implementation (acts_on "kernel") or a layer (acts_on "layer") into another.

    wrap(implementation, argument) -> implementation; argument is the text after ":" (None when
    absent) and wrap raises ValueError for one that makes no sense. wrap_layer(module, argument) ->
    module. definition(variant, argument) -> variant: for a transform that changes numbers on purpose,
    the same rounding simulated in float64, against which it is judged; definition_layer(module in float64,
    argument) -> module is the same for a layer. aims_at: "memory", "time" or "numbers". applied(evidence,
    bare evidence) proves that it happened. refuses_layer(workload, direction, device) -> sentence or None.
    """

    label: str
    doc: str
    aims_at: str
    acts_on: Literal["kernel", "layer"] = "kernel"
    wrap: Callable[[Implementation, str | None], Implementation] | None = None
    wrap_layer: Callable[[nn.Module, str | None], nn.Module] | None = None
    definition: Callable[[Variant, str | None], Variant] | None = None
    definition_layer: Callable[[nn.Module, str | None], nn.Module] | None = None
    applied: Callable[[Evidence, Evidence], Applied] | None = None
    default: str | None = None
    example: str | None = None
    needs: tuple[Need, ...] = ()
    refuses_layer: Callable[[Workload, str, str], str | None] | None = None


@dataclass(frozen=True, eq=False)
class Layer:
    """A module with projections around any implementation: x [B, I, M] -> y [B, I, M].

    build(attention, workload, generator) -> nn.Module whose forward(x, mask) calls `attention`, with
    parameters in the workload's dtype on the CPU. Its oracle is the same module in float64 with the
    definition itself as its attention. inside(workload) is the workload that the attention sees where it
    differs. configure(**options) -> Layer gives the same with other options; their defaults are its own.
    held(attention, workload) -> bytes that one forward holds for the backward above its inputs and weights, output
    included, by a formula that stands beside it; None for a kernel whose share nobody has written down.
    """

    name: str
    doc: str
    build: Callable[[Implementation, Workload, torch.Generator], nn.Module]
    refuses: Callable[[Implementation, Workload], str | None] | None = None
    inside: Callable[[Workload], Workload] | None = None
    configure: Callable[..., Layer] | None = None
    held: Callable[[Implementation, Workload], int | None] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Names of what `configure` takes."""
        return tuple(inspect.signature(self.configure).parameters) if self.configure else ()
