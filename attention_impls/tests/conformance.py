"""What every entrant must do: each check a plain function that raises AssertionError saying what to change.

A check takes an entrant and a case that the entrant does not refuse. Transformed, peer and user kernels
are asked the same.
Which check is asked on which cases stands in conformance_plan.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls import inputs, judge
from attention_impls.call import Call
from attention_impls.tests import conformance_changes as changes
from attention_impls.tests import conformance_steps as steps
from attention_impls.tests.conformance_cases import CASES, Case
from attention_impls.tests.conformance_steps import Entrant, held


def check_output_is_the_definitions(who: Entrant, case: Case) -> None:
    call = steps.draw(who, case)
    right = steps.expected(who, case)
    out = steps.forward(who, call).out
    limit = steps.allowed(who, case, steps.widest(who), "out", call.q.dtype)
    held(who, case, "output against the definition", steps.worst(out, right.out), limit, "The kernel computes another "
         "function here, or Support should refuse this call with a sentence.")  # fmt: skip


def check_gradients_are_the_definitions(who: Entrant, case: Case) -> None:
    call = steps.draw(who, case)
    right = steps.expected(who, case).gradients
    out, found = steps.backward(who, call, steps.upstream_of(call))
    scale = max((float(g.abs().max()) for g in right.values() if g.numel()), default=0.0)
    limit = steps.allowed(who, case, steps.widest(who), "out", call.q.dtype)
    error = steps.worst(out, steps.expected(who, case).out)
    held(who, case, "output of a step that has gradients", error, limit, "It differs from the output without.")
    for name, gradient in found.items():
        limit = steps.allowed(who, case, steps.widest(who), name, gradient.dtype)
        error = steps.worst(gradient, right[name], scale)
        held(who, case, f"gradient of {name}", error, limit, "Mend the backward, or say backward=False in Support.")


def check_never_looks_ahead(who: Entrant, case: Case) -> None:
    """Changes everything from a cut on; rows before it must stay, and have no gradient to what was changed.

    Where all queries together decide who sees whom (Variant.couples), a later one may move earlier rows, by
    the mechanism's own definition: there only gradients are looked at.
    """
    call = steps.draw(who, case)
    cut = call.q.shape[2] // 2
    changed = changes.replaced(call, "J", cut, 30.0)
    changed = replace(changes.replaced(changed, "I", cut, 30.0), mask=call.mask)
    limit = steps.same_function(who, call)
    before, after = steps.forward(who, call).out, steps.forward(who, changed).out
    decided_together = "queries" in who.drawn.couples
    error = 0.0 if decided_together else steps.worst(after[:, :, :cut], before[:, :, :cut].double())
    held(who, case, f"rows before {cut} when later tokens change", error, limit, "A query reads keys after its own: "
         "mind the causal mask, its start, and statistics taken over all keys.")  # fmt: skip
    if steps.refusal(who, call, "fwdbwd") is None:
        upstream = inputs.draw_upstream(before, rows=torch.arange(cut))
        for name, gradient in steps.backward(who, call, upstream)[1].items():
            later = changes.from_cut(gradient, call.axes.get(name, changes.AXES.get(name, "")), cut)
            error = changes.largest(later)
            held(who, case, f"gradient of early rows to later {name}", error, limit, "The backward reads masked pairs.")


def check_padding_cannot_be_felt(who: Entrant, case: Case) -> None:
    """Finite garbage in keys and values that no query may see changes neither output nor gradients."""
    call = steps.draw(who, case)
    unseen = changes.unseen_keys(call)
    if not unseen.any():
        raise AssertionError(f"case {case.name} hides no key from every query: it cannot show what padding does")
    dirty = replace(call, k=call.k.masked_fill(unseen, 1e4), v=call.v.masked_fill(unseen, -1e4))
    limit = steps.same_function(who, call)
    advice = "Hide masked keys before any statistic over keys is taken."
    clean_out, dirty_out = steps.forward(who, call).out, steps.forward(who, dirty).out
    held(who, case, "output with garbage in the padding", steps.worst(dirty_out, clean_out.double()), limit, advice)
    if steps.refusal(who, call, "fwdbwd") is None:
        upstream = steps.upstream_of(call)
        clean, soiled = steps.backward(who, call, upstream)[1], steps.backward(who, dirty, upstream)[1]
        for name in clean:
            error = steps.worst(soiled[name], clean[name].double(), changes.largest(clean[name]))
            held(who, case, f"gradient of {name} with garbage in the padding", error, limit, advice)


def check_queries_without_keys_give_zeros(who: Entrant, case: Case) -> None:
    call = steps.draw(who, case)
    empty = changes.empty_rows(call)
    if not empty.any():
        raise AssertionError(f"case {case.name} has no query without keys")
    advice = "A query that sees no key gives zeros (use softmax_rows), or drop empty_rows from Support.masks."
    out = steps.forward(who, call).out
    held(who, case, "output of queries without keys", changes.largest(out[empty]), 0.0, advice)
    if steps.refusal(who, call, "fwdbwd") is None:
        found = steps.backward(who, call, steps.upstream_of(call))[1]
        for name, gradient in found.items():
            held(who, case, f"not finite in the gradient of {name}", changes.not_finite(gradient), 0.0, advice)
        if "queries" not in who.drawn.couples:
            held(who, case, "gradient of queries without keys", changes.largest(found["q"][empty]), 0.0, advice)


def check_log_sum_exp_is_right(who: Entrant, case: Case) -> None:
    """The value, -inf of empty rows included, and, where claimed, the gradient of a random multiple of it."""
    call = steps.draw(who, case)
    claimed = who.inner.support.lse
    right, wanted = _exact_lse(who, call)
    found = steps.forward(who, call, lse=True).lse
    if found is None:
        raise AssertionError(f"{who.name}: Support.lse is {claimed!r}, yet no LSE came back when it was asked for")
    limit = steps.same_function(who, call)
    held(who, case, "log-sum-exp", judge.errors(found, right).relative, limit, "Natural logarithm; -inf for a query "
         "without keys; or say lse='no' in Support.")  # fmt: skip
    if claimed != "differentiable" or steps.refusal(who, call, "fwdbwd") is not None:
        return
    own, tracked = steps.leaves(call, who.learned)
    lse = who.inner.prepare(call, True)(own).lse
    assert lse is not None
    seen = lse.isfinite()
    gradients = steps.gradients_of(lse.masked_fill(~seen, 0.0), _lse_upstream(seen, lse.dtype), tracked)
    for name, gradient in gradients.items():
        error = steps.worst(gradient, wanted[name], max(changes.largest(g) for g in wanted.values()))
        held(who, case, f"gradient of the log-sum-exp to {name}", error, limit, "Say lse='value' in Support if it is "
             "not differentiable.")  # fmt: skip


def _exact_lse(who: Entrant, call: Call) -> tuple[Tensor, dict[str, Tensor]]:
    variant = who.definition.variant
    if variant.lse is None:
        raise AssertionError(f"{who.name} claims an LSE, yet {variant.name} defines none (Variant.lse)")
    own, tracked = steps.leaves(call.map(torch.Tensor.double), who.learned)
    lse = variant.lse(own.expanded(), torch.arange(call.q.shape[2]))
    seen = lse.isfinite()
    gradients = steps.gradients_of(lse.masked_fill(~seen, 0.0), _lse_upstream(seen, torch.float64), tracked)
    return lse.detach(), gradients


def _lse_upstream(seen: Tensor, dtype: torch.dtype) -> Tensor:
    made = torch.randn(seen.shape, generator=inputs.generator("lse upstream")).to(dtype)
    return made.masked_fill(~seen, 0.0)


def check_scale_is_obeyed(who: Entrant, case: Case) -> None:
    call = steps.draw(who, case)
    _obeyed(who, case, replace(call, scale=call.scale * 1.5), "another scale", must_differ=None)


def check_parameters_are_felt(who: Entrant, case: Case) -> None:
    call = steps.draw(who, case)
    for name in call.parameters:
        own = {**call.parameters, name: changes.other_values(call.parameters[name])}
        _obeyed(who, case, replace(call, parameters=own), f"another {name}", must_differ=call)


def check_mask_is_felt(who: Entrant, case: Case) -> None:
    call = steps.draw(who, case)
    open_call = replace(call, mask=steps.draw(who, CASES["square"]).mask)
    if steps.refusal(who, open_call) is None:
        _obeyed(who, case, call, f"a {case.workload.mask} mask", must_differ=open_call)


def _obeyed(who: Entrant, case: Case, call: Call, what: str, must_differ: Call | None) -> None:
    """The output for `call` is the definition's, and differs from that for `must_differ`; or it is refused."""
    if steps.refusal(who, call) is not None:
        return
    out, right = steps.forward(who, call).out, steps.exact(who, call).out
    limit = steps.same_function(who, call)
    held(who, case, f"output under {what}", steps.worst(out, right), limit, "It is ignored or misread: obey it, or "
         "refuse it in Support.why_not.")  # fmt: skip
    if must_differ is not None and steps.worst(steps.forward(who, must_differ).out, right) <= limit:
        raise AssertionError(f"{who.name}, case {case.name}: {what} changes nothing; drop it, or make it act")


def check_refusal_is_true(who: Entrant, case: Case) -> None:
    """Asks for an output that Support refuses: it must raise, or give what the definition does not."""
    call = steps.draw(who, case)
    _untrue(who, case, "fwd", lambda: steps.worst(steps.forward(who, call).out, steps.expected(who, case).out))


def check_refusal_of_gradients_is_true(who: Entrant, case: Case) -> None:
    """Asks for gradients that Support refuses: it must raise, or give what the definition does not."""
    call, right = steps.draw(who, case), steps.expected(who, case).gradients

    def worst_gradient() -> float:
        found = steps.backward(who, call, steps.upstream_of(call))[1]
        scale = max(changes.largest(g) for g in right.values())
        return max(steps.worst(gradient, right[name], scale) for name, gradient in found.items())

    _untrue(who, case, "fwdbwd", worst_gradient)


def _untrue(who: Entrant, case: Case, direction: str, error_of: Callable[[], float]) -> None:
    """Raises AssertionError when what is refused comes out right."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error = error_of()
    except Exception:  # whatever it raises, the refusal was true
        return
    call = steps.draw(who, case)
    if error <= steps.same_function(who, call):
        raise AssertionError(
            f"{who.name}, case {case.name}, {direction} is refused ({steps.refusal(who, call, direction)!r}), yet it "
            f"comes out right (worst-row error {error:.3g}). Take it out of what Support refuses, or begin the "
            "sentence with contract.POLICY if it is a decision."
        )
