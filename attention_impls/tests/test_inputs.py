"""Seeded inputs: the same numbers everywhere, and a mask language that says what it does not know."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from attention_impls import inputs
from attention_impls.contract import Parameter, Variant, Workload
from attention_impls.inputs import build_mask, draw, draw_upstream, sample_rows
from attention_impls.variants.scores.softmax import SOFTMAX

SMALL = Workload(batch=2, heads=4, kv_heads=2, q_len=9, kv_len=9, head_dim=4, value_dim=3, dtype="f64")


def variant_with(**parameters: Parameter) -> Variant:
    return Variant("probe", weights=lambda call, rows: call.q, parameters=parameters)


BY_AXES = variant_with(gate=Parameter("B H J", "token"), slopes=Parameter("H", "constant"))


def test_the_same_numbers_come_in_every_process() -> None:
    program = (
        "from attention_impls.contract import Workload; from attention_impls.inputs import draw;"
        "from attention_impls.variants.scores.softmax import SOFTMAX;"
        f"call = draw(SOFTMAX, Workload(**{replace(SMALL, mask='dense:0.5').to_dict()!r}));"
        "print([t.sum().item() for t in (call.q, call.k, call.v, call.mask.dense)])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    call = draw(SOFTMAX, replace(SMALL, mask="dense:0.5"))
    assert runs == [f"{[t.sum().item() for t in (call.q, call.k, call.v, call.mask.dense)]}\n"] * 2


@pytest.mark.parametrize("dtype", ["f32", "tf32", "f16", "bf16"])
def test_every_dtype_holds_the_same_numbers_rounded(dtype: str) -> None:
    workload = replace(SMALL, dtype=dtype)
    for wide, narrow in zip(draw(BY_AXES, SMALL).tensors(), draw(BY_AXES, workload).tensors(), strict=True):
        assert narrow.dtype == workload.torch_dtype
        assert torch.equal(wide.to(narrow.dtype), narrow)


def test_a_new_parameter_changes_no_other_draw() -> None:
    more = variant_with(extra=Parameter("H D", "weight"), **BY_AXES.parameters)
    before, after = draw(BY_AXES, SMALL), draw(more, SMALL)
    assert torch.equal(before.q, after.q)
    assert torch.equal(before.parameters["gate"], after.parameters["gate"])


def test_input_sets_differ_in_what_is_learned_and_agree_in_what_is_not() -> None:
    one, other = (draw(BY_AXES, SMALL, which=which) for which in (0, 1))
    for name in ("q", "k", "v"):
        assert not torch.equal(getattr(one, name), getattr(other, name))
    assert not torch.equal(one.parameters["gate"], other.parameters["gate"])
    assert torch.equal(one.parameters["slopes"], other.parameters["slopes"])


def test_a_layout_is_a_stride_order_of_the_same_numbers() -> None:
    plain, born = draw(SOFTMAX, SMALL), draw(SOFTMAX, SMALL, layout="B I H D")
    assert torch.equal(plain.q, born.q)
    assert born.q.transpose(1, 2).is_contiguous()
    assert not born.q.is_contiguous()


def test_a_layout_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="layout"):
        draw(SOFTMAX, SMALL, layout="H B I D")


def test_the_meta_device_gets_shapes_and_a_place_but_no_numbers() -> None:
    call = draw(BY_AXES, replace(SMALL, mask="dense:0.5"), device="meta", place="cuda")
    assert {t.device.type for t in call.tensors()} == {"meta"}
    assert call.where == "cuda"
    assert call.mask.dense is not None
    assert call.mask.dense.is_meta


def test_own_axes_take_their_size_from_the_parameter() -> None:
    probe = variant_with(
        features=Parameter("F D", "random", sizes={"F": 5}),
        same=Parameter("R J", "weight", sizes={"R": "H"}),
        worked_out=Parameter("P", "weight", sizes={"P": lambda workload: workload.q_len // 2}),
    )
    shapes = {n: tuple(p.shape) for n, p in draw(probe, SMALL).parameters.items()}
    assert shapes == {"features": (5, 4), "same": (4, 9), "worked_out": (4,)}


def test_a_letter_without_a_size_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="axis 'Z'"):
        draw(variant_with(odd=Parameter("Z", "weight")), SMALL)


def test_a_parameter_keeps_a_dtype_of_its_own() -> None:
    kinds = variant_with(
        decay=Parameter("H", "token", dtype="float32"),
        index=Parameter("J", "constant", dtype="int64", draw=lambda made, shape: torch.arange(shape[0])),
    )
    drawn = draw(kinds, replace(SMALL, dtype="bf16")).parameters
    assert {name: p.dtype for name, p in drawn.items()} == {"decay": torch.float32, "index": torch.int64}


def test_padding_is_between_the_fraction_and_the_whole_the_first_shortest() -> None:
    lengths = build_mask(replace(SMALL, batch=64, mask="padded:0.5", kv_len=40)).key_lengths
    assert lengths is not None
    assert int(lengths[0]) == 20
    assert 20 <= int(lengths.min()) <= int(lengths.max()) <= 40
    assert len(set(lengths.tolist())) > 5


def test_packed_documents_lie_side_by_side() -> None:
    ids = build_mask(replace(SMALL, mask="packed:4")).q_segments
    assert ids is not None
    for row in ids.tolist():
        assert row == sorted(row)
        assert set(row) == {0, 1, 2, 3}


def test_a_dense_mask_shows_about_the_fraction_it_says() -> None:
    dense = build_mask(replace(SMALL, q_len=100, kv_len=100, mask="dense:0.3")).dense
    assert dense is not None
    assert dense.shape == (2, 4, 100, 100)
    assert abs(float(dense.double().mean()) - 0.3) < 5 * (0.21 / 80000) ** 0.5


def test_words_joined_by_plus_hold_together() -> None:
    mask = build_mask(replace(SMALL, q_len=4, mask="causal:bottom_right+padded:0.5"))
    assert mask.kinds() == {"causal", "key_lengths"}
    assert mask.q_start == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("casual", "no word 'casual'; known: full, causal"),
        ("causal:top", "no word 'causal:top'"),
        ("full:1", "no word 'full:1'"),
        ("", "no word ''"),
        ("causal+", "no word ''"),
        ("causal&padded:0.5", "no word"),
        ("padded", r"number in \(0, 1\] after ':', got ''"),
        ("padded:0", "got '0'"),
        ("padded:1.5", "got '1.5'"),
        ("dense:nan", "got 'nan'"),
        ("packed:0", "whole number of at least 1"),
        ("packed:2.5", "got '2.5'"),
        ("packed:10", "10 documents do not fit into 9 tokens"),
    ],
)
def test_a_mask_text_that_makes_no_sense_is_an_error_that_says_what_does(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build_mask(replace(SMALL, mask=text))


def test_packed_documents_need_as_many_keys_as_queries() -> None:
    with pytest.raises(ValueError, match="as many keys as queries"):
        build_mask(replace(SMALL, q_len=4, mask="packed:2"))


def test_an_unknown_distribution_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(
        ValueError, match="'pareto'; known: normal, heavytail, outliers, runs, offset_channels, scaled_"
    ):
        draw(SOFTMAX, replace(SMALL, inputs="pareto"))


BIG = replace(SMALL, q_len=2048, kv_len=2048, head_dim=16)


def kurtosis(x: Tensor) -> float:
    return float((x - x.mean()).pow(4).mean() / x.var().square())


def test_distributions_have_the_moments_they_are_named_for() -> None:
    drawn = {name: draw(SOFTMAX, replace(BIG, inputs=name)).q for name in inputs.DISTRIBUTIONS}
    count = drawn["normal"].numel()
    assert abs(float(drawn["normal"].mean())) < 5 / count**0.5
    assert kurtosis(drawn["normal"]) == pytest.approx(3.0, abs=0.1)
    assert kurtosis(drawn["heavytail"]) > 10
    assert float(drawn["heavytail"].var()) == pytest.approx(1.0, abs=0.2)
    rare = float((drawn["outliers"].abs() > 6).double().mean())
    assert rare == pytest.approx(1e-3, rel=0.25)
    runs = drawn["runs"].unflatten(2, (-1, 32))
    assert torch.equal(runs, runs[:, :, :, :1].expand_as(runs))


@pytest.mark.parametrize(
    ("name", "mean", "deviation"), [("offset_channels", 20.0, 1.0), ("scaled_channels", 0.0, 20.0)]
)
def test_channel_outliers_are_four_channels_of_the_keys_alone(name: str, mean: float, deviation: float) -> None:
    call = draw(SOFTMAX, replace(BIG, inputs=name))
    x = inputs.draw_tokens(replace(BIG, inputs=name), 16)[:, None]
    for drawn, special in ((call.k, [0, 4, 8, 12]), (x, [0, 4, 8, 12]), (call.q, []), (call.v, [])):
        tokens = drawn.double().movedim(-1, 0).flatten(1)  # [D, …]
        where = torch.tensor(special, dtype=torch.long)
        zeros = torch.zeros(len(tokens), dtype=torch.float64)
        assert torch.allclose(tokens.mean(1), zeros.index_fill(0, where, mean), atol=0.1 * deviation)
        assert torch.allclose(tokens.std(1), (zeros + 1.0).index_fill(0, where, deviation), rtol=0.1)


def test_an_upstream_gradient_of_sampled_rows_is_zero_elsewhere() -> None:
    like = torch.zeros(2, 3, 7, 4, dtype=torch.float64)
    rows = torch.tensor([0, 4])
    some = draw_upstream(like, rows=rows)
    assert set(some.abs().sum((0, 1, 3)).nonzero().flatten().tolist()) == {0, 4}
    whole = partial(draw_upstream, like)
    assert torch.equal(whole(), whole())
    assert not torch.equal(whole(which=1), whole())


def test_sampled_rows_hold_both_ends_and_are_sorted_without_repetition() -> None:
    rows = sample_rows(1000, 16).tolist()
    assert rows == sorted(set(rows))
    assert (rows[0], rows[-1], len(rows)) == (0, 999, 16)
    assert sample_rows(5, 16).tolist() == [0, 1, 2, 3, 4]
