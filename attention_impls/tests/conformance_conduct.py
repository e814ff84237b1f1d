"""How every entrant must behave, beside computing the right thing: checks as in conformance.py.

Inputs are left alone, sequences do not mix, strides do not matter, dtype and device are kept, no memory is
read before it is written, a prepared run takes other values, and no precision is lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import DTYPES
from attention_impls.tests import conformance_changes as changes
from attention_impls.tests import conformance_steps as steps
from attention_impls.tests.conformance_cases import Case
from attention_impls.tests.conformance_steps import Entrant, held


def check_inputs_are_left_alone(who: Entrant, case: Case) -> None:
    call = steps.draw(who, case)
    tensors = {"q": call.q, "k": call.k, "v": call.v, **call.parameters}
    copies = {name: t.clone() for name, t in tensors.items()}
    steps.forward(who, call)
    _unwritten(who, case, tensors, copies)
    if steps.refusal(who, call, "fwdbwd") is None:
        steps.backward(who, call, steps.upstream_of(call))
        _unwritten(who, case, tensors, copies)


def _unwritten(who: Entrant, case: Case, tensors: Mapping[str, Tensor], copies: Mapping[str, Tensor]) -> None:
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


def _precise(who: Entrant, case: Case, dtype: str) -> None:
    call = steps.draw(who, case, dtype)
    right = steps.expected(who, case, dtype)
    inside = who.inside if who.inside and DTYPES[who.inside].itemsize < DTYPES[dtype].itemsize else dtype
    outs = {"out": steps.forward(who, call).out}
    if steps.refusal(who, call, "fwdbwd") is None:
        outs |= steps.backward(who, call, steps.upstream_of(call))[1]
    for name, found in outs.items():
        limit = steps.precision(who, case, dtype, inside, name)
        error = steps.worst(found, steps.named(right, name))
        held(who, case, f"{name} at {dtype}", error, limit, f"Keep sums and the softmax in a wider dtype, or leave "
             f"{dtype} out of Support.dtypes.")  # fmt: skip


def check_float32_is_precise(who: Entrant, case: Case) -> None:
    _precise(who, case, "f32")


def check_float16_is_precise(who: Entrant, case: Case) -> None:
    _precise(who, case, "f16")


def check_bfloat16_is_precise(who: Entrant, case: Case) -> None:
    _precise(who, case, "bf16")
