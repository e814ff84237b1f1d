"""The conformance suite is proved by planted faults: each check catches at least one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Implementation
from attention_impls.tests import conformance_plan as planning
from attention_impls.tests import conformance_steps as steps
from attention_impls.tests import faults
from attention_impls.tests.conformance_cases import CASES
from attention_impls.tests.conformance_checks import CHECKS, REFUSALS, Check
from attention_impls.tests.faults import mutant
from attention_impls.variants.scores.softmax import SOFTMAX


@dataclass(frozen=True)
class Planted:
    """A fault, the check that must catch it, on which case, and a word of its message."""

    check: str
    case: str
    says: str
    implementation: Implementation

    @property
    def id(self) -> str:
        return f"{self.implementation.name}/{self.case}/{self.check}"


FULL_ONLY = frozenset({"full", "empty_rows"})
PLANTED = [
    Planted("output", "square", "against the definition", mutant(faults.scaled_wrongly)),
    Planted("output", "square_causal", "against the definition", mutant(faults.shifted_mask)),
    Planted("output", "awkward", "against the definition", mutant(faults.lost_tile)),
    Planted("output", "grouped", "against the definition", mutant(faults.swapped_head)),
    Planted("output", "square_causal", "against the definition", mutant(faults.dropped_causal)),
    Planted("gradients", "square", "gradient of q", mutant(faults.tripled_gradient)),
    Planted("gradients", "grouped_cross", "gradient of q", mutant(faults.tripled_gradient)),
    Planted("looks_ahead", "square_causal", "when later tokens change", mutant(faults.shifted_mask)),
    Planted("looks_ahead", "packed_causal", "when later tokens change", mutant(faults.dropped_causal)),
    Planted("looks_ahead", "square_causal", "early rows to later v", mutant(faults.future_gradient)),
    Planted("padding", "padded", "garbage", mutant(faults.felt_padding)),
    Planted("padding", "causal_padded", "garbage", mutant(faults.dropped_padding)),
    Planted("empty_rows", "ragged_empty", "without keys", mutant(faults.unguarded_softmax)),
    Planted("empty_rows", "unseeing_queries", "without keys", mutant(faults.felt_padding)),
    Planted("lse", "ragged_empty", "log-sum-exp", mutant(faults.empty_lse_is_zero, lse="differentiable")),
    Planted("lse", "square_causal", "log-sum-exp", mutant(faults.binary_lse, lse="value")),
    Planted("lse", "grouped", "does not require grad", mutant(faults.detached_lse, lse="differentiable")),
    Planted("lse", "grouped", "no LSE came back", mutant(faults.no_lse, lse="value")),
    Planted("inputs_alone", "square", "wrote into its input q", mutant(faults.written_in_place)),
    Planted("batch_rows", "square", "when the last one changes", mutant(faults.mixed_batch)),
    Planted("batch_rows", "square", "gradient to the last one's v", mutant(faults.mixed_gradient)),
    Planted("strides", "square", "transposed inputs", mutant(faults.strides_ignored)),
    Planted("broadcast", "square", "expanded inputs", mutant(faults.broadcast_doubled)),
    Planted("broadcast", "square", "expanded upstream", mutant(faults.broadcast_gradient_doubled)),
    Planted("dtype", "square", "q's dtype", mutant(faults.other_dtype)),
    Planted("fresh_memory", "square", "poisoned memory", mutant(faults.fresh_memory)),
    Planted("other_values", "square", "one prepared run", Implementation("stale", SOFTMAX, faults.stale)),
    Planted("float32", "awkward", "at f32", mutant(faults.half_inside)),
    Planted("float16", "awkward", "at f16", mutant(faults.eight_bit_weights)),
    Planted("bfloat16", "awkward", "at bf16", mutant(faults.eight_bit_weights)),
    Planted("scale", "square", "another scale", mutant(faults.ignored_scale)),
    Planted("parameters", "square", "another bias", mutant(faults.forgotten_bias, faults.BIASED)),
    Planted("parameters", "square", "changes nothing", mutant(faults.forgotten_bias, faults.BIAS_FORGOTTEN)),
    Planted("mask", "multi_query", "a causal mask", mutant(faults.dropped_causal)),
    Planted("mask", "padded", "a padded:0.5 mask", mutant(faults.dropped_padding)),
    Planted("refusal", "square_causal", "comes out right", mutant(faults.attend, masks=FULL_ONLY)),
    Planted("refusal_of_gradients", "square", "comes out right", mutant(faults.attend, backward=False)),
]
FUNCTIONS = {check.name: check.function for check in (*CHECKS, *REFUSALS.values())}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.id)
def test_a_planted_fault_is_caught(planted: Planted) -> None:
    with pytest.raises(AssertionError, match=planted.says) as caught:
        FUNCTIONS[planted.check](steps.entrant_of(planted.implementation), CASES[planted.case])
    assert planted.implementation.name in str(caught.value) or "Support" in str(caught.value)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_what_catches_faults_lets_the_faultless_pass(check: Check) -> None:
    who = steps.entrant_of(mutant(faults.with_lse, lse="differentiable"))
    for case in check.cases[:4]:
        check.function(who, CASES[case])


def test_every_check_has_a_fault_that_it_catches() -> None:
    assert {planted.check for planted in PLANTED} == set(FUNCTIONS)


@pytest.mark.parametrize("support", [{"masks": FULL_ONLY}, {"cross": False}, {"value_dim": False}])
def test_a_true_refusal_is_believed(support: dict[str, Any]) -> None:
    def narrow(call: Call) -> Tensor:
        return faults.attend(
            replace(call, mask=replace(call.mask, causal=False), v=call.v[:, :, : call.q.shape[2], :8])
        )

    who = steps.entrant_of(mutant(narrow, **support))
    case = next(c for c in CASES.values() if steps.refusal(who, steps.draw(who, c)) is not None and c.workload.batch)
    REFUSALS["fwd"].function(who, case)


def test_an_entrant_that_refuses_everything_is_asked_nothing_but_to_prove_it() -> None:
    who = steps.entrant_of(mutant(faults.attend, dtypes=frozenset({"f64"}), masks=frozenset()))
    made = planning.Plan()
    planning.ask(made, who, CHECKS, tuple(CASES))
    assert {asked.check.name for asked in made.asked} == {"refusal"}
    assert made.refused[who.name].total() > len(CASES)
