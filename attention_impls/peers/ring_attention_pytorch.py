"""ring-attention-pytorch 0.5.20 (P. Wang): softmax attention by flash tiles, its ring of one process.

After Liu et al. 2023, arXiv 2310.01889. [B, I, H, D] is its own layout. Maxima and sums are held in float32: too
coarse for float64, and half precision meets them in one product and fails. Under a causal mask it drops the padding
mask; its causal corner needs as many keys as queries.
"""

from __future__ import annotations

from functools import partial

from attention_impls.call import Call
from attention_impls.contract import Growth, Implementation, Run, Support
from attention_impls.needs import package
from attention_impls.peers import first_of, imported, keys_within, only_default_scale, outside_autocast, tiled_heads
from attention_impls.tiling import checked
from attention_impls.variants.scores.softmax import SOFTMAX

LIBRARY = "ring_attention_pytorch"


def _ring(bucket: int, call: Call, lse: bool) -> Run:
    kernel = imported(f"{LIBRARY}.ring_flash_attention").ring_flash_attn
    mask = call.mask.simplified().to(call.q.device)
    attend = partial(kernel, mask=keys_within(mask), causal=mask.causal, bucket_size=bucket)
    return outside_autocast(lambda call: attend(*(x.transpose(1, 2) for x in (call.q, call.k, call.v))).transpose(1, 2))


def _drops_padding(call: Call) -> str | None:
    both = call.mask.causal and call.mask.key_lengths is not None
    return "drops the padding mask under a causal one" if both else None


def _corner(call: Call) -> str | None:
    oblong = call.mask.causal and call.q.shape[2] != call.k.shape[2]
    return "knows the causal corner of as many keys as queries only" if oblong else None


def ring(bucket: int = 1024) -> Implementation:
    """Tiles of `bucket` queries by as many keys. Raises ValueError for a bucket below 1."""
    support = Support(
        dtypes=frozenset({"f32", "tf32"}),
        masks=frozenset({"full", "causal", "key_lengths", "empty_rows"}),
        starts=frozenset({"zero"}),
        value_dim=False,
        needs=(package(LIBRARY, "ring-attention-pytorch"),),
        why_not=first_of(only_default_scale, tiled_heads, _drops_padding, _corner),
    )
    prepare = partial(_ring, checked("bucket", bucket))
    return Implementation(LIBRARY, SOFTMAX, prepare, support, layout="B I H D", configure=ring, growth=Growth(bytes=1))


IMPLEMENTATIONS = [ring()]
