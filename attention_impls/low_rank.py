"""Attention whose matrix is a product of two thin ones, A = L R with L [I, M] and R [M, J], in its two forms.

materialised: A multiplied out, then A v; memory O(I·J). factored: L (R v), which never makes an [I, J]: time and
memory linear in I and J for a given M. A mechanism gives its two factors, rows of R being softmaxes over keys in
most. Both forms in float32 at least. Only masks that hide the same keys from every query fit: hidden ones are
columns of zeros in R, and where a sequence has no key at all the output is zeros. Shared by the entrants of
variants/linear that put a few tokens between queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attention_impls.call import Call, hide, repeat_heads, softmax_for
from attention_impls.contract import Growth, Implementation, Output, Run, Support, Variant

SAME_KEYS = frozenset({"full", "key_lengths", "empty_rows"})
"""Words of masks that hide the same keys from every query."""

OverKeys = Callable[[Tensor], Tensor]
"""Softmax over the visible keys: logits [B, *, M, J] -> the same, hidden keys zero."""

Factors = Callable[[Call, OverKeys], tuple[Tensor, Tensor]]
"""(a call in float32 at least, the softmax over its keys) -> L [B, H, I, M] and R [B, H or G, M, J]."""


def low_rank(variant: Variant, factors: Factors) -> list[Implementation]:
    """The two forms of a variant whose matrix is L R."""
    support = Support(masks=variant.masks & SAME_KEYS)
    return [
        Implementation("materialised", variant, partial(_prepared, _materialised, factors), support),
        Implementation(
            "factored", variant, partial(_prepared, _factored, factors), support, growth=Growth(1, 1, "rank fixed")
        ),
    ]


def segment_means(x: Tensor, count: int) -> Tensor:
    """Means of `count` runs of tokens, as even as can be, the longer ones first: [B, H, I, D] -> [B, H, count, D]."""
    size, longer = divmod(x.shape[2], count)
    cut = longer * (size + 1)
    runs = [(x[:, :, :cut], longer, size + 1), (x[:, :, cut:], count - longer, size)]
    return torch.cat([part.unflatten(2, (n, length)).mean(3) for part, n, length in runs if n], 2)


def _prepared(form: Callable[[Tensor, Tensor, Tensor], Tensor], factors: Factors, call: Call, lse: bool) -> Run:
    mask = call.mask.simplified().to(call.q.device)
    softmax = softmax_for(mask)
    seen = mask.visible(torch.zeros(1, dtype=torch.long))  # [B, 1, 1, J]: every query sees what the first does

    def over_keys(logits: Tensor) -> Tensor:
        return softmax(hide(logits, seen))

    def run(call: Call) -> Output:
        wide = call.map(lambda t: t.to(torch.promote_types(t.dtype, torch.float32)))
        return Output(form(*factors(wide, over_keys), wide.v).to(call.q.dtype))

    return run


def _materialised(left: Tensor, right: Tensor, v: Tensor) -> Tensor:
    heads = left.shape[1]
    return (left @ repeat_heads(right, heads)) @ repeat_heads(v, heads)


def _factored(left: Tensor, right: Tensor, v: Tensor) -> Tensor:
    """R v once for each head of R: once a key/value head where R does not depend on queries."""
    gathered = right @ repeat_heads(v, right.shape[1])  # [B, H or G, M, E]
    return left @ repeat_heads(gathered, left.shape[1])
