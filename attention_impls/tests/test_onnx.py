"""Our implementations against ONNX's own tests of its attention operators: its reference and onnxruntime's kernels."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("onnx", reason="needs onnx and onnxruntime; try: pip install onnx onnxruntime")
pytest.importorskip("onnxruntime", reason="needs onnxruntime; try: pip install onnxruntime")

import onnx
import onnxruntime

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.contract import Implementation
from attention_impls.needs import CPP_COMPILER
from attention_impls.tests import onnx_calls, onnx_cases, onnx_recurrences
from attention_impls.tests.onnx_calls import Parts
from attention_impls.tests.onnx_cases import OnnxCase, cases, expected

NOT_APPLICABLE = Path(__file__).with_name("onnx_not_applicable.txt")
# Largest |error| - RELATIVE·|right|, by the dtype of the output. Half precision: two roundings of numbers up to 1.
ABSOLUTE = {"float64": 1e-14, "float32": 5e-7, "float16": 2**-10, "bfloat16": 2**-7}
RELATIVE = {"float64": 1e-14, "float32": 5e-7, "float16": 2**-11, "bfloat16": 2**-8}

PARTS = {"Attention": onnx_calls.attention, "FlexAttention": onnx_calls.flex_attention}
MAPPED = (*PARTS, "LinearAttention", "RotaryEmbedding")


def not_applicable() -> dict[str, str]:
    lines = [line for line in NOT_APPLICABLE.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def names(output: str, *operators: str) -> list[str]:
    """Cases with such an output (a name of the schema), of these operators or of any."""
    listed = not_applicable()
    chosen = (case for case in cases().values() if case.operator in (operators or MAPPED) and case.name not in listed)
    return [case.name for case in chosen if output in case.outputs]


def parts_of(case: OnnxCase) -> Parts:
    return PARTS[case.operator](case)


@cache
def implementations(variant: str) -> dict[str, Implementation]:
    """All of a variant, at its options, that this machine can run without compiling."""
    name, *options = variant.split(":")
    entry = catalogue.entries()[name]
    given = dict(option.split("-", 1) for option in options)
    made = entry.make(**{option: type(entry.defaults[option])(text) for option, text in given.items()})
    here = (i for i in made if "cpu" in i.support.devices and CPP_COMPILER not in i.support.needs)
    return {f"{variant}.{i.name}": i for i in here if i.missing() is None}


def close(what: str, found: Tensor, right: dict[str, np.ndarray]) -> None:
    """Within the tolerances of the dtype, -inf equal to -inf, for everyone who says what is right."""
    for who, value in right.items():
        kind, sizes = value.dtype.name, np.abs(value[np.isfinite(value)].astype(np.float64))
        np.testing.assert_allclose(
            found.double().numpy(),
            value.astype(np.float64),
            rtol=RELATIVE[kind],
            atol=ABSOLUTE[kind] * max(1.0, sizes.max(initial=0.0)),
            err_msg=f"{what} against {who}",
        )


def run(implementation: Implementation, call: Call) -> Tensor:
    with torch.no_grad():
        return implementation.prepare(call, False)(call).out


@pytest.mark.parametrize("name", names("Y", *PARTS))
def test_every_implementation_gives_what_onnx_and_onnxruntime_say(name: str) -> None:
    case, ran = cases()[name], Counter()
    for one in onnx_calls.asked(parts_of(case)):
        for subject, implementation in implementations(one.variant).items():
            if implementation.refuses(one.call) is None:
                close(subject, one.restore(run(implementation, one.call)), expected(case, "Y"))
                ran[one.variant] += 1
        assert ran[one.variant] >= 2, f"{one.variant} was asked of {ran[one.variant]} implementations only"


@pytest.mark.parametrize("name", names("present_key"))
def test_the_keys_and_values_of_the_call_are_onnxs_caches(name: str) -> None:
    call = parts_of(cases()[name]).call
    for output, found in (("present_key", call.k), ("present_value", call.v)):
        for who, value in expected(cases()[name], output).items():
            np.testing.assert_array_equal(found.numpy(), value, err_msg=f"{output} against {who}")


@pytest.mark.parametrize("name", names("qk_matmul_output"))
def test_the_definitions_rows_are_onnxs_logits_and_weights(name: str) -> None:
    case = cases()[name]
    mode = case.attributes.get("qk_matmul_output_mode", 0)
    variant, call = onnx_calls.exposed(parts_of(case), mode)
    defined = next(iter(implementations(variant).values())).variant
    rows, whole = torch.arange(call.q.shape[2]), call.map(Tensor.double).expanded()
    found = defined.weights(whole, rows)
    if mode < 3:
        found = found.log() + defined.lse(whole, rows).unsqueeze(-1)
    close(f"mode {mode}", found, expected(case, "qk_matmul_output"))


@pytest.mark.parametrize("name", names("present_state"))
def test_every_recurrence_gives_the_outputs_and_states_that_onnx_and_onnxruntime_say(name: str) -> None:
    case, ran = cases()[name], Counter()
    for one in onnx_recurrences.linear_attention(case):
        for subject, implementation in implementations(one.variant).items():
            if implementation.refuses(one.call) is not None:
                continue
            outs = {subject: run(implementation, one.call)}
            if implementation.prefill is not None and "past_state" in case.inputs:
                outs[f"{subject} resumed"] = resumed(implementation, one.call)
            for what, out in outs.items():
                for output, found in onnx_recurrences.both(case, out).items():
                    close(f"{what}: {output}", found, expected(case, output))
            ran[one.variant] += 1
    assert ran and min(ran.values()) >= 2, ran


def resumed(implementation: Implementation, call: Call) -> Tensor:
    with torch.no_grad():
        return implementation.resume(call, implementation.prefill(call)).out


@pytest.mark.parametrize("name", names("Y", "RotaryEmbedding"))
def test_ropes_turn_gives_what_onnx_and_onnxruntime_say(name: str) -> None:
    close("rope", onnx_recurrences.rotated(cases()[name]), expected(cases()[name], "Y"))


def test_every_case_of_onnx_is_mapped_or_listed_with_a_reason() -> None:
    listed = not_applicable()
    unmapped = {n for n, case in cases().items() if case.operator not in MAPPED} - listed.keys()
    assert not unmapped, f"map {sorted(unmapped)} in onnx_calls.py, or list them in {NOT_APPLICABLE.name}"
    assert not listed.keys() - cases().keys(), f"{NOT_APPLICABLE.name} lists what ONNX no longer has"
    assert all(len(reason.split()) > 3 for reason in listed.values()), "a reason is a sentence"


def test_no_case_and_no_operator_of_attention_is_overlooked() -> None:
    assert onnx_cases.names_among_all() == cases().keys()
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
    assert {n for n in known if "Attention" in n or "Rotary" in n} == set(onnx_cases.OPERATORS)


def test_onnxruntime_runs_every_case_but_those_listed() -> None:
    refused = {n for n in cases() if isinstance(onnx_cases.from_onnxruntime(n), str)}
    assert refused == set(onnx_cases.NOT_IN_ONNXRUNTIME), f"onnxruntime {onnxruntime.__version__}"


@pytest.mark.parametrize(("name", "output"), onnx_cases.KNOWN_DIFFERENCES)
def test_a_known_difference_is_still_one(name: str, output: str) -> None:
    reference, ran = cases()[name].outputs[output], onnx_cases.from_onnxruntime(name)
    assert not isinstance(ran, str)
    lowest = np.finfo(reference.dtype).min
    np.testing.assert_array_equal(np.isneginf(reference), ran[output] == lowest)
    seen = np.isfinite(reference)
    np.testing.assert_allclose(ran[output][seen], reference[seen], rtol=1e-6)
