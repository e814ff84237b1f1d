"""`compiled`: torch.compile with its default compiler, for the shapes of one call.

Compilation happens in prepare, on inputs of zeros shaped alike, in the gradient mode that prepare is called
in: run a prepared kernel in the same mode, with inputs that require gradients alike, or torch compiles again.
What the compiler made is told: graphs, breaks, and the calls of its generated code. Plain softmax attention
is not fused but replaced by torch's flash operator, so that `softmax.naive+compiled` may be `sdpa_flash`.
"""

from __future__ import annotations

import re
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Applied, Evidence, Implementation, Output, Run, Transform
from attention_impls.evidence import BREAKS, CODE, CODE_BACKWARD, GRAPHS, Told, listed
from attention_impls.needs import CPP_COMPILER

LABEL = "compiled"
_CALLS = re.compile(
    r"extern_kernels\.(?P<extern>\w+)\("
    r"|torch\.ops\.(?:aten|prims|mkldnn|mkl)\.(?P<operator>\w+)\.\w+\("
    r"|^\s+(?P<own>(?:cpp|triton)_\w+?)(?:\.run)?\(",
    re.MULTILINE,
)
_FUSED = re.compile(r"_scaled_dot_product_\w*attention\w*?|_flash_attention_forward|_efficient_attention_forward")


def _wrap(inner: Implementation, argument: str | None) -> Implementation:
    if argument is not None:
        raise ValueError(f"{LABEL} takes no argument; got {argument}")

    def prepare(call: Call, lse: bool) -> Run:
        kernel = inner.prepare(call, lse)
        names, mask, scale, axes = sorted(call.parameters), call.mask, call.scale, call.axes

        def step(q: Tensor, k: Tensor, v: Tensor, *values: Tensor) -> tuple[Tensor, Tensor | None]:
            out, total = kernel(Call(q, k, v, mask, scale, dict(zip(names, values, strict=True)), axes))
            return out, total

        with _torch_quietly():
            compiled = torch.compile(_of_its_own(step), dynamic=False)
            told = _compiled_now(lambda: _once(compiled, call.tensors()))
        return Told(lambda call: Output(*compiled(*call.tensors())), (kernel,), told)

    return replace(inner, prepare=prepare, refusal=inner.refuses, prefill=None, configure=None)


def _of_its_own(step: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a code object that nobody shares.

    torch keeps what it compiled with the code object: contenders and workloads that shared one would evict
    each other at its recompile limit, and resetting torch instead would throw away everybody's.
    """
    return types.FunctionType(step.__code__.replace(), step.__globals__, step.__name__, None, step.__closure__)


def _once(compiled: Callable[..., Any], tensors: list[Tensor]) -> None:
    """One step on zeros laid out like the call's tensors, backward included where gradients are recorded."""
    blanks = [_blank(t) for t in tensors]
    out = compiled(*blanks)[0]
    if torch.is_grad_enabled() and out.requires_grad:
        leaves = [t for t in blanks if t.requires_grad]
        torch.autograd.grad(out, leaves, torch.zeros_like(out), allow_unused=True)


def _blank(t: Tensor) -> Tensor:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    base = torch.zeros(extent, dtype=t.dtype, device=t.device)
    return base.as_strided(t.shape, t.stride()).requires_grad_(t.requires_grad)


def _compiled_now(work: Callable[[], None]) -> Mapping[str, Any]:
    """What torch compiled while `work` ran: graphs, breaks, and the calls of the generated code by phase."""
    from torch._dynamo.utils import counters
    from torch._inductor.graph import GraphLowering

    codes: list[str] = []
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    kept, GraphLowering.save_output_code = GraphLowering.save_output_code, codes.append
    try:
        work()
    finally:
        GraphLowering.save_output_code = kept
    backward = [code for code in codes if "tangents_" in code]
    return {
        GRAPHS: counters["stats"]["unique_graphs"] - graphs,
        BREAKS: sum(counters["graph_break"].values()) - breaks,
        CODE: sum((_calls(code) for code in codes if code not in backward), Counter[str]()),
        CODE_BACKWARD: sum((_calls(code) for code in backward), Counter[str]()),
    }


def _calls(code: str) -> Counter[str]:
    """Calls of generated code by name: library products, torch operators and kernels of its own."""
    body = code[code.index("def call(") : code.index("def get_args(") if "def get_args(" in code else None]
    return Counter(str(found[found.lastgroup or ""]) for found in _CALLS.finditer(body))


@contextmanager
def _torch_quietly() -> Iterator[None]:
    """Three warnings of torch about its own code: a deprecated decorator in the files of its compiler, which are
    imported by the first compilation, its tracer's instance of autograd.Function, and its tracer's look at .grad
    of tensors after a graph break."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".torch\.jit\.script", DeprecationWarning)
        warnings.filterwarnings("ignore", r".*autograd\.function\.Function'> should not be inst", DeprecationWarning)
        warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf", UserWarning)
        yield


def _applied(evidence: Evidence, bare: Evidence) -> Applied:
    """Proof: at least one graph, no break; the text says what became of the kernel."""
    graphs, breaks = evidence.facts.get(GRAPHS, 0), evidence.facts.get(BREAKS, 0)
    code: Counter[str] = evidence.facts.get(CODE, Counter())
    if not graphs or breaks or not code:
        return Applied(False, f"{graphs} graphs, {breaks} breaks, {code.total()} calls of generated code")
    replaced = [op for op in code if _FUSED.fullmatch(op) and not any(op in seen for seen in bare.forward)]
    became = f"became SDPA ({replaced[0]}); " if replaced else ""
    return Applied(True, f"{became}{graphs} graphs, 0 breaks: {listed(code)}")


TRANSFORM = Transform(
    label=LABEL,
    doc="torch.compile, compiled in prepare for the shapes of the call",
    aims_at="time",
    wrap=_wrap,
    applied=_applied,
    needs=(CPP_COMPILER,),
)
