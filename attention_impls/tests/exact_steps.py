"""Shared by the tests of the exact forms of softmax: masks, float64 calls, and the answer from single elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attention_impls import catalogue
from attention_impls.call import Call
from attention_impls.contract import Output
from attention_impls.inputs import draw_upstream
from attention_impls.mask import Mask, full_mask

SEGMENTS = torch.tensor([[0] * 4 + [1] * 1 + [2] * 8, [0] * 7 + [1] * 3 + [2] * 3])
MASKS = {
    "full": full_mask(9, 21),
    "causal": Mask(13, 13, causal=True),
    "aligned": Mask(9, 21, causal=True, q_start=12),
    "early": Mask(9, 21, causal=True, q_start=-3),  # three queries stand before every key
    "lengths": Mask(9, 21, key_lengths=torch.tensor([0, 17])),
    "packed": Mask(13, 13, causal=True, q_segments=SEGMENTS, k_segments=SEGMENTS),
    "dense": Mask(9, 21, dense=torch.arange(2 * 4 * 9 * 21).mul(7).remainder(11).lt(3).view(2, 4, 9, 21)),
    "one_query": full_mask(1, 21),
    "one_key": full_mask(9, 1),
}


def drawn(mask: str | Mask = "full", heads: int = 4, kv_heads: int = 2, d: int = 4, e: int = 3) -> Call:
    """Two sequences of float64 inputs that require gradients, with a scale that is nobody's default."""
    mask = MASKS[mask] if isinstance(mask, str) else mask
    made = torch.Generator().manual_seed(mask.q_len * 100 + mask.kv_len)
    shapes = (2, heads, mask.q_len, d), (2, kv_heads, mask.kv_len, d), (2, kv_heads, mask.kv_len, e)
    q, k, v = (torch.randn(s, generator=made, dtype=torch.float64, requires_grad=True) for s in shapes)
    return Call(q, k, v, mask, 0.7)


def answer(name: str, call: Call) -> Output:
    made = catalogue.find(f"softmax.{name}").inner
    assert made.refuses(call) is None, made.refuses(call)
    return made.prepare(call, made.support.lse != "no")(call)


def by_hand(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """out [B, H, I, E] and lse [B, H, I], one exponential at a time by the sums of the definition."""
    q, k, v = (t.detach().numpy() for t in (call.q, call.k, call.v))
    batch, heads, rows, _ = q.shape
    seen = visible(call).numpy()
    out, lse = np.zeros((batch, heads, rows, v.shape[3])), np.full((batch, heads, rows), -math.inf)
    for b, h, i in np.ndindex(batch, heads, rows):
        g = h // call.group
        powers = {j: math.exp(call.scale * sum(q[b, h, i] * k[b, g, j])) for j in np.flatnonzero(seen[b, h, i])}
        if powers:
            total = math.fsum(powers.values())
            out[b, h, i] = sum(p / total * v[b, g, j] for j, p in powers.items())
            lse[b, h, i] = math.log(total)
    return out, lse


def visible(call: Call) -> Tensor:
    """[B, H, I, J] bool."""
    shape = (*call.q.shape[:3], call.k.shape[2])
    seen = call.mask.visible()
    return torch.ones(shape, dtype=torch.bool) if seen is None else seen.expand(shape)


def is_softmax(name: str, call: Call) -> None:
    """Asserts that value and log-sum-exp are those summed by hand."""
    found, (out, lse) = answer(name, call), by_hand(call)
    np.testing.assert_allclose(found.out.detach().numpy(), out, rtol=0, atol=1e-13)
    assert found.lse is not None
    np.testing.assert_allclose(found.lse.detach().numpy(), lse, rtol=0, atol=1e-13)


def has_torchs_gradients(name: str, call: Call) -> None:
    """Asserts that gradients of a random upstream are those of torch's own attention in float64."""
    leaves = [call.q, call.k, call.v]
    upstream = draw_upstream(torch.empty(*call.q.shape[:3], call.v.shape[3], dtype=torch.float64))
    mine = torch.autograd.grad(answer(name, call).out, leaves, upstream)
    torchs = scaled_dot_product_attention(*leaves, attn_mask=visible(call), scale=call.scale, enable_gqa=call.group > 1)
    for own, theirs in zip(mine, torch.autograd.grad(torchs, leaves, upstream), strict=True):
        torch.testing.assert_close(own, theirs, rtol=0, atol=1e-12)


class _Sizes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        floats = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.is_floating_point()]
        self.found += [(func.overloadpacket.__name__, t.numel()) for t in floats]
        return result


def sizes(name: str, call: Call, steps: Callable[[str], bool] = lambda op: True) -> list[int]:
    """How many numbers each operator's result holds in one forward, of the operators that `steps` names."""
    made = catalogue.find(f"softmax.{name}").inner
    run = made.prepare(call, False)
    return sizes_in(lambda: run(call), steps)


def sizes_in(work: Callable[[], object], steps: Callable[[str], bool] = lambda op: True) -> list[int]:
    """The same of anything that computes, without gradients."""
    with torch.no_grad(), _Sizes() as seen:
        work()
    return [size for op, size in seen.found if steps(op)]


def products(op: str) -> bool:
    """Whether an operator is a matrix product."""
    return op in ("mm", "bmm", "baddbmm")


def alone(call: Call, b: int, rows: slice, keys: slice) -> Call:
    """Some rows and keys of one sequence as a call of its own, nothing hidden."""
    q, k, v = call.q[b : b + 1, :, rows], call.k[b : b + 1, :, keys], call.v[b : b + 1, :, keys]
    return replace(call, q=q, k=k, v=v, mask=full_mask(q.shape[2], k.shape[2]))
