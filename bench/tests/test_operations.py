"""Model FLOPs against hand counts."""

import pytest

from bench.cell import coordinates, parse_id
from bench.metrics.operations import METRICS

FLOPS = next(m for m in METRICS if m.name == "model_flops").derive


def flops(text):
    return FLOPS(coordinates(parse_id(text), ""), {}).values[0]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        # 4 queries, 10 keys, bottom-right: 7 + 8 + 9 + 10 = 34 pairs, times 2 (8 + 16): xformers#1033 had 1920
        ("softmax.naive/b1-h1-n4-m10-d8-e16-f32-causal:bottom_right/fwd/cpu1", 34 * 2 * 24),
        ("softmax.naive/b2-h3-n8-d4-f32-causal/fwd/cpu1", 2 * 3 * 36 * 2 * 8),
        ("softmax.naive/b1-h1-n8-d4-f32-full/fwdbwd/cpu1", int(64 * 2 * 8 * 3.5)),
        # a window of 3 keys including self, causal, 8 queries: 1 + 2 + 3 * 6 = 21 pairs
        ("sliding_window:window-3.naive/b1-h1-n8-d4-f32-causal/fwd/cpu1", 21 * 2 * 8),
        # one query against a cache: every key counts (4 B S H D)
        ("softmax.naive/b1-h2-n1-m128-d16-f32-causal:bottom_right/fwd/cpu1", 2 * 128 * 2 * 32),
    ],
)
def test_pairs_are_counted_exactly(cell, expected):
    assert flops(cell) == expected
