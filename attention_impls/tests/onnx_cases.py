"""ONNX's own tests of its attention operators, as arrays by the operator's names, and what they must give.

Expected values come twice: those stored with a case, from ONNX's reference in numpy, and those of onnxruntime's
C++ kernels where it has one. What these two disagree on stands in `KNOWN_DIFFERENCES`.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx.backend.test.case import node as node_cases
from torch import Tensor

OPERATORS = ("Attention", "FlexAttention", "LinearAttention", "RotaryEmbedding")
REFERENCE, RUNTIME = "onnx's reference", "onnxruntime"

NO_CPU_KERNEL = "onnxruntime has no CPU kernel in bfloat16"
NO_OPERATOR = "onnxruntime has no FlexAttention"
NOT_IN_ONNXRUNTIME = {
    "attention_4d_causal_bf16": NO_CPU_KERNEL,
    "attention_4d_attn_mask_causal_bf16": NO_CPU_KERNEL,
    "attention_3d_causal_bf16": NO_CPU_KERNEL,
    "attention_4d_padded_kv_bf16": NO_CPU_KERNEL,
    "attention_4d_causal_padded_kv_bf16": NO_CPU_KERNEL,
    "attention_4d_diff_heads_mask4d_padded_kv": "onnxruntime takes no mask that is shorter than the keys",
    "flexattention": NO_OPERATOR,
    "flexattention_scaled": NO_OPERATOR,
    "flexattention_gqa": NO_OPERATOR,
    "flexattention_diff_head_sizes": NO_OPERATOR,
    "flexattention_score_mod": NO_OPERATOR,
    "flexattention_prob_mod": NO_OPERATOR,
    "flexattention_fp16": NO_OPERATOR,
    "flexattention_double": NO_OPERATOR,
    "flexattention_causal_mask": NO_OPERATOR,
    "flexattention_soft_cap": NO_OPERATOR,
    "flexattention_relative_positional": NO_OPERATOR,
}
LOWEST = "onnxruntime writes the lowest number where the reference writes -inf"
KNOWN_DIFFERENCES = {
    ("attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal", "qk_matmul_output"): LOWEST,
    ("attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal", "qk_matmul_output"): LOWEST,
}


@dataclass(frozen=True, eq=False)
class OnnxCase:
    """One case: its only node's attributes, and inputs and stored outputs by the names in the operator's schema."""

    name: str
    operator: str
    attributes: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    model: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]


@cache
def cases() -> dict[str, OnnxCase]:
    """Every case of one of OPERATORS by its name without "test_"; the twins written out in primitives left out."""
    found = (_case(case) for case in _collected(_imported) if _operator(case) in OPERATORS)
    return {case.name: case for case in found}


@cache
def names_among_all() -> frozenset[str]:
    """The same names, looked for among the cases of every operator that ONNX has: it takes five seconds."""
    found = _collected(node_cases.collect_testcases)
    return frozenset(case.name.removeprefix("test_") for case in found if _operator(case) in OPERATORS)


def _imported() -> list[Any]:
    """Importing a file of cases makes them; the files of other operators are left alone."""
    for operator in OPERATORS:
        name = "linear_attention" if operator == "LinearAttention" else operator.lower()
        importlib.import_module(f"{node_cases.__name__}.{name}")
    return node_cases._NodeTestCases


def _collected(collect: Callable[[], Iterable[Any]]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases of other operators overflow on purpose
        drawn = np.random.get_state()  # each case seeds numpy's own generator
        try:
            return list(collect())
        finally:
            np.random.set_state(drawn)


def _operator(case: Any) -> str:
    """The operator of a case of a single node, else ""."""
    nodes = case.model.graph.node
    return nodes[0].op_type if len(nodes) == 1 else ""


def _case(case: Any) -> OnnxCase:
    (node,) = case.model.graph.node
    versions = {opset.domain or "": opset.version for opset in case.model.opset_import}
    schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
    ((inputs, outputs),) = case.data_sets
    given = dict(zip((name for name in node.input if name), map(_array, inputs), strict=True))
    made = dict(zip((name for name in node.output if name), map(_array, outputs), strict=True))
    return OnnxCase(
        case.name.removeprefix("test_"),
        node.op_type,
        {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
        {formal.name: given[name] for formal, name in zip(schema.inputs, node.input, strict=False) if name},
        {formal.name: made[name] for formal, name in zip(schema.outputs, node.output, strict=False) if name},
        case.model,
        given,
    )


def _array(value: Any) -> np.ndarray:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@cache
def from_onnxruntime(name: str) -> dict[str, np.ndarray] | str:
    """What onnxruntime's CPU kernels give for a case, by the schema's names; its complaint where it has none."""
    case = cases()[name]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # it would write its complaint to the terminal as well
    try:
        text = case.model.SerializeToString()
        session = onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])
        found = session.run(None, dict(case.feeds))
    except Exception as error:  # onnxruntime's own errors share no public base
        return f"{type(error).__name__}: {error}"
    return dict(zip(case.outputs, found, strict=True))


def expected(case: OnnxCase, output: str) -> dict[str, np.ndarray]:
    """The right values of one output, by who says so."""
    found = {REFERENCE: case.outputs[output]}
    ran = from_onnxruntime(case.name)
    if not isinstance(ran, str) and (case.name, output) not in KNOWN_DIFFERENCES:
        found[RUNTIME] = ran[output]
    return found


def tensor(array: np.ndarray) -> Tensor:
    """The same numbers in torch, bfloat16 included, in memory of their own."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
