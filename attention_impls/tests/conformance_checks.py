"""Which check is asked on which cases, and what an entrant must offer to be asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from attention_impls.tests import conformance as checks
from attention_impls.tests import conformance_conduct as conduct
from attention_impls.tests.conformance_cases import CASES, COMPILED, Case
from attention_impls.tests.conformance_steps import Entrant

Checked = Callable[[Entrant, Case], None]


@dataclass(frozen=True)
class Check:
    """A check, the cases it is asked on, and what an entrant must offer to be asked.

    direction: what must not be refused. dtype: asked at this one, "" for the widest. needs_lse: a claimed LSE.
    """

    name: str
    function: Checked
    cases: tuple[str, ...]
    direction: str = "fwd"
    dtype: str = ""
    needs_lse: bool = False


EVERY = tuple(CASES)
SQUARES = ("square", "square_causal")
ROUND = ("round", "round_causal")  # lengths that grids, buckets and chunks divide
OUTPUT = Check("output", checks.check_output_is_the_definitions, EVERY)
GRADIENTS = Check("gradients", checks.check_gradients_are_the_definitions, EVERY, "fwdbwd")
CHECKS = (
    OUTPUT,
    GRADIENTS,
    Check("looks_ahead", checks.check_never_looks_ahead, ("square_causal", "round_causal", "packed_causal")),
    Check("padding", checks.check_padding_cannot_be_felt, ("padded", "causal_padded")),
    Check("empty_rows", checks.check_queries_without_keys_give_zeros, ("unseeing_queries", "ragged_empty")),
    Check("lse", checks.check_log_sum_exp_is_right, ("grouped", "square_causal", "ragged_empty", "sparse"),
          needs_lse=True),
    Check("inputs_alone", conduct.check_inputs_are_left_alone, (*SQUARES, *ROUND, "grouped_cross")),
    Check("batch_rows", conduct.check_batch_rows_do_not_mix, (*SQUARES, *ROUND)),
    Check("strides", conduct.check_strides_do_not_matter, (*SQUARES, "grouped", "round_causal")),
    Check("broadcast", conduct.check_broadcast_inputs_are_taken, (*SQUARES, "grouped", "round_causal")),
    Check("dtype", conduct.check_dtype_and_device_are_kept, (*SQUARES, *ROUND)),
    Check("fresh_memory", conduct.check_no_uninitialised_memory_is_read, (*SQUARES, *ROUND, "awkward", "ragged_empty")),
    Check("other_values", conduct.check_prepared_once_runs_on_other_values, (*SQUARES, *ROUND, "grouped_cross")),
    Check("float32", conduct.check_float32_is_precise, ("round", "awkward"), dtype="f32"),
    Check("float16", conduct.check_float16_is_precise, ("round", "awkward"), dtype="f16"),
    Check("bfloat16", conduct.check_bfloat16_is_precise, ("round", "awkward"), dtype="bf16"),
    Check("scale", checks.check_scale_is_obeyed, (*SQUARES, *ROUND)),
    Check("parameters", checks.check_parameters_are_felt, (*SQUARES, *ROUND)),
    Check("mask", checks.check_mask_is_felt, ("multi_query", "padded", "causal_padded", "packed", "packed_causal",
                                              "dense")),
)  # fmt: skip
COMPILING = tuple(replace(check, cases=COMPILED) for check in (OUTPUT, GRADIENTS))
REFUSALS = {
    "fwd": Check("refusal", checks.check_refusal_is_true, EVERY),
    "fwdbwd": Check("refusal_of_gradients", checks.check_refusal_of_gradients_is_true, EVERY, "fwdbwd"),
}
