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
from attention_impls.contract import DTYPES
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


def check_inputs_are_left_alone(who: Entrant, case: Case) -> None:
    call = steps.draw(who, case)
    tensors = {"q": call.q, "k": call.k, "v": call.v, **call.parameters}
    copies = {name: t.clone() for name, t in tensors.items()}
    steps.forward(who, call)
    if steps.refusal(who, call, "fwdbwd") is None:
        steps.backward(who, call, steps.upstream_of(call))
    for name, tensor in tensors.items():
        if not torch.equal(tensor, copies[name]):
            raise AssertionError(f"{who.name}, case {case.name}: wrote into its input {name}; work on a copy")


def check_batch_rows_do_not_mix(who: Entrant, case: Case) -> None:
    call = steps.draw(who, case)
    other = changes.with_other_last_sequence(call)
    limit = steps.same_function(who, call)
    advice = "One sequence of the batch reads another: mind reshapes and statistics over the batch axis."
    before, after = steps.forward(who, call).out[:-1], steps.forward(who, other).out[:-1]
    held(who, case, "first sequence when the last one changes", steps.worst(after, before.double()), limit, advice)
    if steps.refusal(who, call, "fwdbwd") is None:
        upstream = steps.upstream_of(call)
        upstream[-1] = 0.0
        found = steps.backward(who, call, upstream)[1]
        for name in ("q", "k", "v"):
            error = changes.largest(found[name][-1])
            held(who, case, f"first sequence's gradient to the last one's {name}", error, limit, advice)


def check_strides_do_not_matter(who: Entrant, case: Case) -> None:
    """Inputs born as [B, I, H, D], and every second column of a wider tensor."""
    call = steps.draw(who, case)
    for kind, change in (("transposed", changes.born_transposed), ("sliced", changes.every_second_column)):
        _same_answer(who, case, call, call.map(change), f"{kind} inputs")


def check_broadcast_inputs_are_taken(who: Entrant, case: Case) -> None:
    """One sequence expanded over the batch, one key head over all: memory shared, stride 0."""
    call = steps.draw(who, case)
    batch, heads = call.k.shape[:2]
    k, v = (t[:1, :1].expand(batch, heads, -1, -1) for t in (call.k, call.v))
    shared = replace(call, q=call.q[:1].expand(batch, -1, -1, -1), k=k, v=v)
    _same_answer(who, case, shared.map(torch.Tensor.contiguous), shared, "expanded inputs")
    if steps.refusal(who, call, "fwdbwd") is None:
        one = call.q.new_ones(()).expand(steps.upstream_of(call).shape)  # what out.sum() hands back
        wanted, found = (steps.backward(who, call, upstream)[1] for upstream in (one.contiguous(), one))
        for name in wanted:
            error = steps.worst(found[name], wanted[name].double(), changes.largest(wanted[name]))
            held(who, case, f"gradient of {name} from an expanded upstream gradient", error,
                 steps.same_function(who, call), "The backward must take any strides.")  # fmt: skip


def check_dtype_and_device_are_kept(who: Entrant, case: Case) -> None:
    for dtype in sorted(who.inner.support.dtypes - {"tf32"}):
        call = steps.draw(who, case, dtype)
        if steps.refusal(who, call) is not None:
            continue
        out = steps.forward(who, call).out
        shape = (*call.q.shape[:3], call.v.shape[3])
        got, wanted = (out.dtype, out.device, tuple(out.shape)), (call.q.dtype, call.q.device, shape)
        if got != wanted:
            raise AssertionError(f"{who.name} at {dtype}: gave {got}; the output has q's dtype, device and {wanted[2]}")


def check_no_uninitialised_memory_is_read(who: Entrant, case: Case) -> None:
    call = steps.draw(who, case)
    clean = steps.forward(who, call).out
    with steps.poisoned_memory():
        poisoned = steps.forward(who, call).out
        gradients = {}
        if steps.refusal(who, call, "fwdbwd") is None:
            gradients = steps.backward(who, call, steps.upstream_of(call))[1]
    advice = "Something is read from torch.empty before it is written."
    limit = steps.same_function(who, call)
    held(who, case, "output in poisoned memory", steps.worst(poisoned, clean.double()), limit, advice)
    for name, gradient in gradients.items():
        held(
            who,
            case,
            f"not finite in the gradient of {name} in poisoned memory",
            changes.not_finite(gradient),
            0.0,
            advice,
        )


def check_prepared_once_runs_on_other_values(who: Entrant, case: Case) -> None:
    first, second = (steps.draw(who, case, which=which) for which in (0, 1))
    with torch.no_grad():
        run = who.inner.prepare(first, False)
        outs = [run(call).out.clone() for call in (first, second, first)]
    limit = steps.allowed(who, case, steps.widest(who), "out", first.q.dtype)
    for which, out in zip((0, 1, 0), outs, strict=True):
        right = steps.expected(who, case, which=which).out
        held(who, case, f"input set {which} through one prepared run", steps.worst(out, right), limit, "prepare may "
             "read shapes, the mask and constants, never values; run may keep nothing.")  # fmt: skip


def _precise(who: Entrant, case: Case, dtype: str, slack: float = 1.0) -> None:
    call = steps.draw(who, case, dtype)
    right = steps.expected(who, case, dtype)
    inside = who.inside if who.inside and DTYPES[who.inside].itemsize < DTYPES[dtype].itemsize else dtype
    outs = {"out": steps.forward(who, call).out}
    if steps.refusal(who, call, "fwdbwd") is None:
        outs |= steps.backward(who, call, steps.upstream_of(call))[1]
    for name, found in outs.items():
        limit = slack * steps.precision(who, case, dtype, inside, name)
        error = steps.worst(found, steps.named(right, name))
        held(who, case, f"{name} at {dtype}", error, limit, f"Keep sums and the softmax in a wider dtype, or leave "
             f"{dtype} out of Support.dtypes.")  # fmt: skip


def check_float32_is_precise(who: Entrant, case: Case) -> None:
    """Sums in another order cost a few roundings; half precision inside costs a thousand."""
    _precise(who, case, "f32", slack=16.0)


def check_float16_is_precise(who: Entrant, case: Case) -> None:
    _precise(who, case, "f16")


def check_bfloat16_is_precise(who: Entrant, case: Case) -> None:
    _precise(who, case, "bf16")


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


def _same_answer(who: Entrant, case: Case, plain: Call, strange: Call, what: str) -> None:
    if steps.refusal(who, strange) is not None:
        return
    limit = steps.same_function(who, plain)
    advice = f"It must take {what}, whatever their strides."
    want, got = steps.forward(who, plain).out, steps.forward(who, strange).out
    held(who, case, f"output of {what}", steps.worst(got, want.double()), limit, advice)
    if steps.refusal(who, plain, "fwdbwd") is None:
        upstream = steps.upstream_of(plain)
        wanted, found = (steps.backward(who, call, upstream)[1] for call in (plain, strange))
        for name in wanted:
            error = steps.worst(found[name], wanted[name].double(), changes.largest(wanted[name]))
            held(who, case, f"gradient of {name} from {what}", error, limit, advice)


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


def _lse_upstream(seen: Tensor, dtype: torch.dtype) -> Tensor:
    made = torch.randn(seen.shape, generator=inputs.generator("lse upstream")).to(dtype)
    return made.masked_fill(~seen, 0.0)


def _exact_lse(who: Entrant, call: Call) -> tuple[Tensor, dict[str, Tensor]]:
    variant = who.definition.variant
    if variant.lse is None:
        raise AssertionError(f"{who.name} claims an LSE, yet {variant.name} defines none (Variant.lse)")
    own, tracked = steps.leaves(call.map(torch.Tensor.double), who.learned)
    lse = variant.lse(own.expanded(), torch.arange(call.q.shape[2]))
    seen = lse.isfinite()
    gradients = steps.gradients_of(lse.masked_fill(~seen, 0.0), _lse_upstream(seen, torch.float64), tracked)
    return lse.detach(), gradients
