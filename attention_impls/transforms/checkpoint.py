"""`checkpoint`, `checkpoint:K`, `checkpoint:selective`, on a layer: keep a block's input, and compute the block again.

Each block of a layer that has `blocks` (an encoder), or the layer as a whole. `checkpoint:K` takes every K-th block and
leaves the others alone. `selective` also keeps what matrix products and fused attention gave, and computes only what
is cheap again. torch.utils.checkpoint in its non-reentrant form: it stops the second forward as soon as everything
that was saved is there, and puts the global random state back, so that dropout drops the same entries twice. A
generator of a module's own is put back by nobody: refused.

Bytes held in float32: a checkpointed block keeps its input, X = 4·B·n·M (counted with the block before; the output of
the last is held as the layer's), and torch's random state, 5,056 bytes on the CPU: `held`. Selectively, it also keeps
the products: q, k, v, o and down X each, up F·X, and what a fused kernel gave: `held_selectively`.
Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174; selective: Korthikanti et
al. 2022, "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from attention_impls.contract import POLICY, Applied, Evidence, Transform, Workload
from attention_impls.evidence import listed, working
from attention_impls.footprint import RNG_STATE, tokens

LABEL, SELECTIVE = "checkpoint", "selective"
_KEPT = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)


def held(whole: int, blocks: int, every: int, w: Workload) -> int:
    """Bytes of a stack that holds `whole` without it, `blocks` alike, every `every`-th of them checkpointed."""
    taken = blocks // every
    return whole * (blocks - taken) // blocks + taken * (tokens(w) + RNG_STATE)


def held_selectively(ffn: int, fused: int, w: Workload) -> int:
    """Bytes of one encoder block, `ffn` times as wide inside; fused: what its fused kernel holds with its output."""
    return tokens(w) * (6 + ffn) + fused + RNG_STATE


def _wrap_layer(module: nn.Module, argument: str | None) -> nn.Module:
    """Changes the forward of the blocks in place: names and classes stay. Raises ValueError where it takes none."""
    every, selective = _meant(argument)
    blocks = list(getattr(module, "blocks", [module]))
    chosen = blocks[every - 1 :: every]
    if not chosen:
        raise ValueError(f"{LABEL}:{every} takes no block: {type(module).__name__} has {len(blocks)}")
    for block in chosen:
        _refuse_generators(block)
        contexts = partial(create_selective_checkpoint_contexts, list(_KEPT)) if selective else noop_context_fn
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
    return module


def _meant(argument: str | None) -> tuple[int, bool]:
    """(every how many blocks, whether it is selective). Raises ValueError."""
    if argument in (None, SELECTIVE):
        return 1, argument == SELECTIVE
    if not (argument.isascii() and argument.isdigit()) or argument.startswith("0") or argument == "1":
        raise ValueError(f"{LABEL} takes nothing, a whole number of at least 2, or {SELECTIVE}; got {argument!r}")
    return int(argument), False


def _refuse_generators(block: nn.Module) -> None:
    for name, part in block.named_modules():
        if any(isinstance(value, torch.Generator) for value in vars(part).values()):
            raise ValueError(
                f"{name or type(block).__name__} draws from a generator of its own, which a checkpoint does not put "
                "back: the second forward would be another; draw from the global one"
            )


def _refuses_layer(workload: Workload, direction: str, device: str) -> str | None:
    if direction == "fwd":
        return f"{POLICY}a forward alone keeps nothing that could be computed again; measure fwdbwd or train"
    return None


def _applied(evidence: Evidence, bare: Evidence) -> Applied:
    """Proof: operators of the forward that run in the backward more often than they do without it, by kind."""
    forward, before, now = working(bare.forward), working(bare.backward), working(evidence.backward)
    again = {op: now[op] - before[op] for op in forward if now[op] > before[op]}
    if not again:
        return Applied(False, "no operator of the forward ran again in the backward")
    return Applied(True, f"computed again in the backward: {listed(again)}")


TRANSFORM = Transform(
    label=LABEL,
    doc="keeps the input of each block only and computes the block again in the backward",
    aims_at="memory",
    acts_on="layer",
    wrap_layer=_wrap_layer,
    refuses_layer=_refuses_layer,
    applied=_applied,
)
