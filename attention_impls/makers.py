"""Short ways to write an entrant: `of` for a plain function, `softmax_of` for logits, `over` for a pattern,
`recast` for a change of the call, `plain` for a user's kernel as people have it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from attention_impls.call import Call, hide, lse_rows, softmax_rows
from attention_impls.contract import Implementation, Output, Run, Support, Variant
from attention_impls.mask import Mask, Pattern

Logits = Callable[[Call, Tensor], Tensor]


def softmax_of(name: str, logits: Logits, **facts: Any) -> Variant:
    """A variant whose rows are softmax(logits) over visible keys; logits(call, rows) -> [B, H, R, J], unmasked.

    Gives weights (in q's dtype, though logits may be wider) and lse; joins by LSE unless keys are coupled
    or `join` says otherwise.
    """

    def masked(call: Call, rows: Tensor) -> Tensor:
        return hide(logits(call, rows), call.mask.visible(rows))

    facts.setdefault("join", "none" if "keys" in facts.get("couples", ()) else "lse")
    return Variant(
        name,
        weights=lambda call, rows: softmax_rows(masked(call, rows)).to(call.q.dtype),
        lse=lambda call, rows: lse_rows(masked(call, rows)),
        **facts,
    )


def of(
    variant: Variant,
    fn: Callable[..., Any],
    *,
    lse_fn: Callable[..., Any] | None = None,
    name: str | None = None,
    **facts: Any,
) -> Implementation:
    """An implementation from fn(q, k, v, *, mask, scale, **parameters) -> out.

    lse_fn, the same function returning (out, lse), is used when the LSE is asked for. `mask` is the
    boolean tensor [1|B, 1|H, I, J] (True = may attend) or None, built once in prepare. Support fields are
    given by name (`lse="differentiable"`, `grouped_heads=False`, …); what is not a field of Support goes
    to Implementation (`configure=`, `layout=`, `source=`).
    """
    support, rest = _split(facts)

    def prepare(call: Call, lse: bool) -> Run:
        visible = call.mask.simplified().to(call.q.device).visible()
        kernel = _chosen(fn, lse_fn, lse)

        def run(call: Call) -> Output:
            return _output(kernel(call.q, call.k, call.v, mask=visible, scale=call.scale, **call.parameters))

        return run

    return Implementation(name or fn.__name__.strip("_"), variant, prepare, support, **rest)


def of_call(
    variant: Variant,
    fn: Callable[[Call], Any],
    *,
    lse_fn: Callable[[Call], Any] | None = None,
    name: str | None = None,
    **facts: Any,
) -> Implementation:
    """An implementation from fn(call) -> out, for kernels that read the mask's rule and positions.

    As `of`, but the kernel gets the call itself, its mask simplified once in prepare.
    """
    support, rest = _split(facts)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        kernel = _chosen(fn, lse_fn, lse)
        return lambda call: _output(kernel(replace(call, mask=mask)))

    return Implementation(name or fn.__name__.strip("_"), variant, prepare, support, **rest)


def _chosen(fn: Callable[..., Any], lse_fn: Callable[..., Any] | None, lse: bool) -> Callable[..., Any]:
    if not lse:
        return fn
    if lse_fn is None:
        raise ValueError(f"{fn.__name__} cannot return the log-sum-exp")
    return lse_fn


def _output(result: Any) -> Output:
    return Output(*result) if isinstance(result, tuple) else Output(result)


def _split(facts: dict[str, Any]) -> tuple[Support, dict[str, Any]]:
    fields = Support.__dataclass_fields__
    chosen = {name: value for name, value in facts.items() if name in fields}
    return Support(**chosen), {name: value for name, value in facts.items() if name not in fields}


def patterned(call: Call, pattern: Pattern) -> Call:
    """The call with `pattern` joined to its mask by "and"."""
    before = call.mask.pattern
    joined = pattern if before is None else _both(before, pattern)
    return replace(call, mask=replace(call.mask, pattern=joined))


def _both(one: Pattern, other: Pattern) -> Pattern:
    return lambda i, j: one(i, j) & other(i, j)


def variant_over(name: str, pattern: Pattern, base: Variant, **facts: Any) -> Variant:
    """`base` restricted to a stated pattern of absolute positions: exact attention of that mask."""

    def within(rows: Callable[[Call, Tensor], Tensor] | None) -> Callable[[Call, Tensor], Tensor] | None:
        return None if rows is None else lambda call, r: rows(patterned(call, pattern), r)

    return replace(
        base,
        name=name,
        weights=within(base.weights),
        lse=within(base.lse),
        oracle=None,
        pattern=pattern if base.pattern is None else _both(base.pattern, pattern),
        **facts,
    )


def over(variant: Variant, pattern: Pattern, *implementations: Implementation) -> list[Implementation]:
    """Each implementation of the base variant as one of `variant` (made by `variant_over` with the same pattern)."""
    return recast(variant, lambda call: patterned(call, pattern), *implementations)


def recast(variant: Variant, change: Callable[[Call], Call], *implementations: Implementation) -> list[Implementation]:
    """Each implementation of another variant as one of `variant`: it gets change(call) in place of the call.

    `change` keeps every shape and drops the parameters that the inner kernel does not know. It is part of
    the timed step. Options of the inner implementations stay options.
    """

    def one(inner: Implementation) -> Implementation:
        def prepare(call: Call, lse: bool) -> Run:
            run = inner.prepare(change(call), lse)
            return lambda call: run(change(call))

        def refusal(call: Call, direction: str) -> str | None:
            return (inner.refusal or inner.support.refuses)(change(call), direction)

        return replace(inner, variant=variant, prepare=prepare, refusal=refusal, configure=_reconfigured(inner, one))

    return [one(inner) for inner in implementations]


def _reconfigured(
    inner: Implementation, again: Callable[[Implementation], Implementation]
) -> Callable[..., Implementation] | None:
    """The options of `inner`, giving what `again` makes of it; the signature stays readable."""
    configure = inner.configure
    if configure is None:
        return None

    @functools.wraps(configure)
    def configured(**options: Any) -> Implementation:
        return again(configure(**options))

    return configured


# What a user's kernel may be told, by the names people give the arguments.
_KNOWN = ("is_causal", "causal", "attn_mask", "mask", "scale", "softmax_scale")


def plain(fn: Callable[..., Tensor], name: str, variant: Variant | None = None, **facts: Any) -> Implementation:
    """A user's kernel fn(q, k, v, …) -> out [B, H, I, E]; its argument names say what it may be told.

    Known: is_causal or causal (top-left corner), attn_mask or mask (bool, True = may attend), scale or
    softmax_scale. Everything else is refused by a sentence. A kernel without a scale argument is taken to
    use 1/sqrt(D). Raises TypeError for a required argument nobody knows. `variant` defaults to softmax.
    """
    names = list(inspect.signature(fn).parameters.values())[3:]
    unknown = [p.name for p in names if p.name not in _KNOWN and p.default is inspect.Parameter.empty]
    if unknown:
        raise TypeError(f"{name}: argument {unknown[0]!r} is not known; known: q, k, v, {', '.join(_KNOWN)}")
    told = [p.name for p in names if p.name in _KNOWN]
    takes_mask = next((n for n in told if n in ("attn_mask", "mask")), None)
    takes_causal = next((n for n in told if n in ("is_causal", "causal")), None)
    takes_scale = next((n for n in told if n in ("scale", "softmax_scale")), None)
    base = variant or _softmax()
    if not takes_mask:
        facts.setdefault("masks", frozenset({"full", "causal"} if takes_causal else {"full"}))
        facts.setdefault("starts", frozenset({"zero"}))
    facts.setdefault("grouped_heads", False)
    facts.setdefault("why_not", None if takes_scale else _only_default_scale(base))
    support, rest = _split(facts)

    def prepare(call: Call, lse: bool) -> Run:
        mask = call.mask.simplified().to(call.q.device)
        options = _options(mask, takes_mask, takes_causal)
        if takes_scale:
            options[takes_scale] = call.scale
        return lambda call: Output(fn(call.q, call.k, call.v, **options))

    return Implementation(name, base, prepare, support, **rest)


def _options(mask: Mask, takes_mask: str | None, takes_causal: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    corner = mask.causal and mask.kinds() == {"causal"} and mask.start() in ("zero",)
    if takes_causal and (corner or not takes_mask):
        options[takes_causal] = mask.causal
    elif takes_mask:
        options[takes_mask] = mask.visible()
    return options


def _only_default_scale(variant: Variant) -> Callable[[Call], str | None]:
    def why(call: Call) -> str | None:
        default = variant.scale(call.q.shape[-1])
        if abs(call.scale - default) <= 1e-12 * default:
            return None
        return f"cannot be told a scale; it uses {default:.4g}"

    return why


def _softmax() -> Variant:
    from attention_impls.variants.scores.softmax import SOFTMAX

    return SOFTMAX
