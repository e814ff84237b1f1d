"""memory-efficient-attention-pytorch 0.1.6 (P. Wang): softmax attention by chunks, and by flash tiles in plain torch.

The chunked form, after Rabe & Staats 2021, arXiv 2112.05682: keys in chunks with a checkpoint around each; causal from
the top-left corner; asked with eps = 0, since its 1e-8 in the denominator is an error. A query without keys gets the
mean of v: refused. Its checkpoints are the re-entrant ones, which torch.autograd.grad does not take: no backward here.

The flash form, after Dao et al. 2022, arXiv 2205.14135, keeps maxima and sums in float32: too coarse for float64,
and half precision meets them in one product and fails. With more keys than queries its causal corner moves the wrong
way. Its backward does not sum over query heads that share keys.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Run, Support
from attention_impls.needs import package
from attention_impls.peers import (
    first_of,
    imported,
    keys_within,
    only_default_scale,
    out_only,
    outside_autocast,
    some_heads_shared,
)
from attention_impls.tiling import checked
from attention_impls.variants.scores.softmax import SOFTMAX

LIBRARY = "memory_efficient_attention_pytorch"
NEEDS = (package(LIBRARY, "memory-efficient-attention-pytorch"),)
TOP_LEFT = frozenset({"zero"})


def _chunked(q_bucket: int, k_bucket: int, call: Call, lse: bool) -> Run:
    kernel = imported(f"{LIBRARY}.memory_efficient_attention").memory_efficient_attention
    mask = call.mask.simplified().to(call.q.device)
    told = {"mask": keys_within(mask), "causal": mask.causal, "q_bucket_size": q_bucket, "k_bucket_size": k_bucket}
    attend = partial(kernel, **told, eps=0.0)
    return out_only(lambda call: attend(call.q, call.k, call.v))


def _flash(q_bucket: int, k_bucket: int, call: Call, lse: bool) -> Run:
    kernel = imported(f"{LIBRARY}.flash_attention").FlashAttentionFunction.apply
    mask = call.mask.simplified().to(call.q.device)
    within, causal = keys_within(mask), mask.causal

    def attend(call: Call) -> Tensor:
        out: Tensor = kernel(call.q, call.k, call.v, within, causal, q_bucket, k_bucket)
        return out

    return outside_autocast(attend)


def _corner_moves(call: Call) -> str | None:
    more = call.mask.causal and call.k.shape[2] > call.q.shape[2]
    return "with more keys than queries it moves the causal corner the wrong way" if more else None


def chunked(q_bucket: int = 512, k_bucket: int = 1024) -> Implementation:
    """Chunks of `q_bucket` queries by `k_bucket` keys. Raises ValueError for sizes below 1."""
    sizes = checked("q_bucket", q_bucket), checked("k_bucket", k_bucket)
    support = Support(
        masks=frozenset({"full", "causal", "key_lengths"}),
        starts=TOP_LEFT,
        backward=False,
        needs=NEEDS,
        why_not=first_of(only_default_scale, some_heads_shared),
    )
    return Implementation(
        LIBRARY, SOFTMAX, partial(_chunked, *sizes), support, configure=chunked, growth=Growth(bytes=1)
    )


def flash(q_bucket: int = 512, k_bucket: int = 1024) -> Implementation:
    """Tiles of `q_bucket` queries by `k_bucket` keys. Raises ValueError for sizes below 1."""
    sizes = checked("q_bucket", q_bucket), checked("k_bucket", k_bucket)
    support = Support(
        dtypes=frozenset({"f32", "tf32"}),
        masks=frozenset({"full", "causal", "key_lengths", "empty_rows"}),
        starts=TOP_LEFT,
        value_dim=False,
        needs=NEEDS,
        why_not=first_of(only_default_scale, some_heads_shared, _corner_moves),
    )

    def refusal(call: Call, direction: str) -> str | None:
        if direction != "fwd" and call.group > 1:
            return "has no backward where query heads share keys"
        return support.refuses(call, direction)

    prepare = partial(_flash, *sizes)
    return Implementation(
        f"{LIBRARY}_flash", SOFTMAX, prepare, support, refusal=refusal, configure=flash, growth=Growth(bytes=1)
    )


IMPLEMENTATIONS = [chunked(), flash()]
