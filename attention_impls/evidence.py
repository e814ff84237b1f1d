"""What one step was seen to do: operators by phase and dtype, from under torch's own dispatcher; and a run's facts.

A dispatch mode cannot look into compiled code, and calling compiled code under one makes torch drop it for
good. A compiled run is therefore watched uncompiled: what was seen is kept apart as what was asked of the
compiler, and the counts are those of its generated code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attention_impls.call import Call
from attention_impls.contract import Evidence, Output, Run, dtype_name

GRAPHS, BREAKS = "graphs", "breaks"  # facts of a compiled run: ints
CODE, CODE_BACKWARD = "code", "code_backward"  # calls of its generated code: Counter of names
TRACED, TRACED_BACKWARD = "traced", "traced_backward"  # what the dispatcher saw where code ran in its stead
NAMED = ("attention", "softmax", "logsumexp", "mm", "mv", "conv", "cpp_", "triton_")  # tells one back-end from another
_COMPUTES_NOTHING = frozenset(
    (
        "alias",
        "as_strided",
        "cat",
        "clone",
        "contiguous",
        "copy_",
        "detach",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "new_empty_strided",
        "permute",
        "reshape",
        "select",
        "slice",
        "slice_backward",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
        "_reshape_alias",
        "_to_copy",
        "_unsafe_view",
    )
)


@runtime_checkable
class Telling(Protocol):
    """A run that can say what it is made of."""

    def facts(self) -> Mapping[str, Any]:
        """Numbers and counters by name; those of several runs are added."""
        ...


@dataclass(frozen=True, eq=False)
class Told:
    """A run that passes on the facts of the runs inside it, its own added."""

    run: Run
    inner: tuple[Run, ...]
    own: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, call: Call) -> Output:
        """Runs the call."""
        return self.run(call)

    def facts(self) -> Mapping[str, Any]:
        """The sum of everything told inside, and its own."""
        return added([*(facts_of(run) for run in self.inner), self.own])


def facts_of(run: Run) -> Mapping[str, Any]:
    """What a run says of itself; nothing for a plain function."""
    return run.facts() if isinstance(run, Telling) else {}


def gather(run: Run, call: Call, upstream: Tensor | None = None) -> Evidence:
    """One step under a dispatch mode: forward, and backward of `upstream` [B, H, I, E] where it is given.

    Gradients go to those of the call's tensors that require them. Raises ValueError where none does.
    """
    leaves = [t for t in call.tensors() if t.requires_grad]
    return watch(lambda: run(call).out, leaves, upstream, facts_of(run))


def watch(
    step: Callable[[], Tensor], leaves: Sequence[Tensor], upstream: Tensor | None, facts: Mapping[str, Any]
) -> Evidence:
    """`gather` for any step that returns its output; gradients of `upstream` go to `leaves`."""
    with torch.compiler.set_stance("force_eager"), _Watch() as forward:
        out = step()
    backward = _Watch()
    if upstream is not None:
        if not leaves:
            raise ValueError("an upstream gradient needs an input that requires one; call requires_grad_() on q, k, v")
        with torch.compiler.set_stance("force_eager"), backward:
            torch.autograd.grad(out, leaves, upstream, allow_unused=True)
    names = (*forward.dtypes, *backward.dtypes)
    dtypes = {op: frozenset(forward.dtypes.get(op, set()) | backward.dtypes.get(op, set())) for op in names}
    if not facts.get(GRAPHS):
        return Evidence(forward.ops, backward.ops, dtypes, dict(facts))
    kept = {**facts, TRACED: forward.ops, TRACED_BACKWARD: backward.ops}
    return Evidence(facts[CODE], facts[CODE_BACKWARD], dtypes, kept)


def watch_also(work: Callable[[], object]) -> Counter[str]:
    """Operators of other work, by name."""
    seen = _Watch()
    with seen:
        work()
    return seen.ops


def asked_forward(evidence: Evidence) -> Counter[str]:
    """Operators of the forward as the implementation asks for them, whether or not a compiler replaced them."""
    traced: Counter[str] = evidence.facts.get(TRACED, evidence.forward)
    return traced


def asked_backward(evidence: Evidence) -> Counter[str]:
    """Operators of the backward as the implementation asks for them, whether or not a compiler replaced them."""
    traced: Counter[str] = evidence.facts.get(TRACED_BACKWARD, evidence.backward)
    return traced


def working(ops: Mapping[str, int]) -> Counter[str]:
    """Only those operators that compute something: no views, no copies, no joining."""
    return Counter({op: n for op, n in ops.items() if op not in _COMPUTES_NOTHING})


def listed(ops: Mapping[str, int]) -> str:
    """ "bmm×2 + _safe_softmax", in the order of appearance."""
    return " + ".join(op if n == 1 else f"{op}×{n}" for op, n in ops.items())


def backend_of(evidence: Evidence) -> str:
    """What did the work in the forward, shortly: a fused operator's name, else products and softmaxes."""
    done = working(evidence.forward)
    fused = {op: n for op, n in done.items() if "attention" in op and not op.startswith(("cpp_", "triton_"))}
    known = fused or {op: n for op, n in done.items() if any(word in op for word in NAMED)}
    named = known or dict(done.most_common(3))
    text = listed(named) or "nothing torch's dispatcher can see"
    return f"compiled: {text}" if evidence.facts.get(GRAPHS) else text


class _Watch(TorchDispatchMode):
    """Counts operators by name and notes the dtypes of their floating results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch types no mode
        self.ops: Counter[str] = Counter()
        self.dtypes: dict[str, set[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        result = func(*args, **(kwargs or {}))
        self.ops[name] += 1
        floating = (t for t in tree_leaves(result) if isinstance(t, Tensor) and t.is_floating_point())
        self.dtypes.setdefault(name, set()).update(dtype_name(t.dtype) for t in floating)
        return result


def added(many: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Facts of several runs as one: what has a name in common is summed."""
    total: dict[str, Any] = {}
    for facts in many:
        for name, value in facts.items():
            total[name] = total[name] + value if name in total else value
    return total
