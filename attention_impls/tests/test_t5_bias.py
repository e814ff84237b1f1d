"""T5's bias: its buckets counted by hand and by x-transformers, and the attention they give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.position_loops import weights_by_position
from attention_impls.tests.score_loops import out_by_loop, x_transformers
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.positional.t5_bias import borders
from attention_impls.variants.scores.softmax import SOFTMAX

KERNELS = ("naive", "tiled", "tiled:block-2")
BOTH = (0, 1)


def variant(bidirectional: int, kernel: str = "naive", buckets: int = 8, far: int = 16):
    name = f"t5_bias:bidirectional-{bidirectional}:buckets-{buckets}:max_distance-{far}.{kernel}"
    return catalogue.find(name).variant, name


def seen_buckets(bidirectional: int, buckets: int, far: int, n: int) -> torch.Tensor:
    """Bucket numbers [n, n], read off the weights: a table of bucket numbers as logits of a query of zeros."""
    found, _ = variant(bidirectional, "naive", buckets, far)
    call = drawn(found, q_len=n, kv_len=n, heads=1, kv_heads=1, batch=1, mask="full")
    call = with_parameters(call.map(torch.zeros_like), table=torch.arange(buckets).double()[None])
    logits = found.weights(call, torch.arange(n))[0, 0].log()
    relative = logits - logits.diagonal()[:, None]  # a key at the query's own place lies in bucket 0
    return relative.round().long()


def test_a_decoder_of_32_buckets_has_borders_counted_by_hand() -> None:
    """16 exact ones; then 16·8^(k/16), k = 1 … 15: 18.2, 20.7, 23.6, …, 112.4; exactly 32 at k = 16/3 is never met."""
    by_hand = [*range(1, 17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert borders(32, 128) == by_hand


@pytest.mark.parametrize(("bidirectional", "buckets", "far", "n"), [(0, 8, 16, 20), (1, 8, 16, 20), (1, 32, 128, 140)])
def test_every_bucket_is_that_of_x_transformers(bidirectional: int, buckets: int, far: int, n: int) -> None:
    x_transformers()  # skips where it is not there
    from x_transformers.x_transformers import RelativePositionBias

    ahead = torch.arange(n)[None] - torch.arange(n)[:, None]
    theirs = RelativePositionBias._relative_position_bucket(ahead, not bidirectional, buckets, far)
    assert torch.equal(seen_buckets(bidirectional, buckets, far, n), theirs)


@pytest.mark.parametrize("axes", [{"mask": "full"}, {"kv_heads": 2}, {"q_len": 3, "mask": "causal:bottom_right"}])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bidirectional", BOTH)
def test_every_form_agrees_with_a_loop_over_single_elements(bidirectional: int, kernel: str, axes: dict) -> None:
    """A direction's buckets by hand: of 4, borders 1, 2 and 2·8^½ = 5.7; of 8, 1 … 4, then 4·4^(k/4) = 5.7, 8, 11.3."""
    found, name = variant(bidirectional, kernel)
    call = drawn(found, **{"kv_len": 14, "q_len": 14, **axes})
    edges = [1, 2, 6] if bidirectional else [1, 2, 3, 4, 6, 8, 12]
    table = call.parameters["table"].numpy()

    def logit(h: int, i: int, j: int, q: np.ndarray, k: np.ndarray) -> float:
        far = abs(i - j) if bidirectional else max(i - j, 0)
        bucket = sum(far >= edge for edge in edges) + (4 if bidirectional and j > i else 0)
        return sum(q * k) + table[h, bucket]

    expected = out_by_loop(call, weights_by_position(call, logit))
    torch.testing.assert_close(definition(found, call), expected)
    torch.testing.assert_close(run(name, call), expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bidirectional", BOTH)
def test_a_table_of_zeros_is_softmax_without_a_scale(bidirectional: int, kernel: str) -> None:
    found, name = variant(bidirectional, kernel)
    call = drawn(found, mask="full")
    assert call.scale == 1.0
    flat = with_parameters(call, table=torch.zeros(4, 8).double())
    torch.testing.assert_close(run(name, flat), definition(SOFTMAX, flat))


@pytest.mark.parametrize("kernel", KERNELS)
def test_later_tokens_change_nothing_before(kernel: str) -> None:
    found, name = variant(0, kernel)
    changes_nothing_before(name, drawn(found), 4)
    torch.testing.assert_close(run(name, drawn(found).rows(6, 7)), run(name, drawn(found))[:, :, 6:])
