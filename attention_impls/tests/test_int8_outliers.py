"""Both dynamic int8 forms under outliers: whom a large token coarsens, what a large channel costs, bytes of weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attention_impls import catalogue, judge, layer_subject
from attention_impls.contract import Workload

LAYER = "softmax.naive+in:multi_head"
WORKLOAD = Workload(batch=2, heads=2, kv_heads=2, q_len=16, kv_len=16, head_dim=32, value_dim=32)
M = 64
pytestmark = pytest.mark.skipif(
    catalogue.find(f"{LAYER}+int8_torchao").missing() is not None, reason="torchao is not here"
)


def _run(name: str, workload: Workload, x: Tensor) -> Tensor:
    with torch.no_grad():
        return layer_subject.prepare(catalogue.find(f"{LAYER}{name}"), workload).run(x)


def _error(name: str, x: Tensor, sample: int = 0) -> float:
    """Relative distance of one sample's output from float64."""
    subject = catalogue.find(f"{LAYER}{name}")
    right = layer_subject.reference(subject, WORKLOAD, x, rounded=False).out
    return judge.errors(_run(name, WORKLOAD, x)[sample], right[sample]).relative


def _with_large_token(x: Tensor, sample: int) -> Tensor:
    """One token of another sample a hundred times larger."""
    return torch.cat([x[:sample], x[sample : sample + 1].clone().index_fill(1, torch.tensor([3]), 100.0)])


def test_a_large_token_of_another_sample_ruins_one_scale_for_all_and_touches_no_scale_of_its_own() -> None:
    calm = layer_subject.draw(WORKLOAD)
    loud = _with_large_token(calm, 1)
    assert _error("+int8_dynamic", loud) > 5 * _error("+int8_dynamic", calm)
    quiet, same = (_run("+int8_torchao", WORKLOAD, x)[0] for x in (calm, loud))
    assert torch.equal(quiet, same)


def test_a_large_token_of_the_same_sample_is_felt_through_attention_alone_where_each_has_its_scale() -> None:
    """Rows of q, k and v but the token's own are what they were, to the bit."""
    calm = layer_subject.draw(WORKLOAD)
    loud = _with_large_token(calm, 1)
    for name, touched in (("+int8_torchao", 1), ("+int8_dynamic", WORKLOAD.q_len)):
        prepared = layer_subject.prepare(catalogue.find(f"{LAYER}{name}"), WORKLOAD)
        with torch.no_grad():
            one, other = (prepared.module.get_submodule("q")(x)[1] for x in (calm, loud))
        assert int((one != other).any(-1).sum()) == touched


@pytest.mark.parametrize(("name", "tolerated"), [("+int8_dynamic", 1.5), ("+int8_torchao", 1.5)])
def test_large_channels_coarsen_both_forms(name: str, tolerated: float) -> None:
    """No scale runs along channels in either: four of 20 among 64 take the bits of the rest."""
    calm = layer_subject.draw(WORKLOAD)
    loud = calm.clone()
    loud[..., :4] *= 20.0
    assert _error(name, loud) > tolerated * _error(name, calm)


def test_a_sample_s_answer_depends_on_its_company_only_where_the_batch_shares_a_scale() -> None:
    pair = layer_subject.draw(WORKLOAD)
    alone = replace(WORKLOAD, batch=1)
    together = {name: _run(name, WORKLOAD, pair)[:1] for name in ("+int8_dynamic", "+int8_torchao")}
    lonely = {name: _run(name, alone, pair[:1]) for name in together}
    torch.testing.assert_close(together["+int8_torchao"], lonely["+int8_torchao"], rtol=1e-5, atol=1e-6)
    assert judge.errors(together["+int8_dynamic"], lonely["+int8_dynamic"].double()).relative > 1e-3


@pytest.mark.parametrize(
    ("name", "linear"),
    [
        ("", 4 * M * M + 4 * M),
        ("+int8_dynamic", M * M + 4 * M + 12),  # and an output scale (4) and zero point (8), which nothing uses
        ("+int8_torchao", M * M + 4 * M + 4 * M + M),  # and for each row a scale and a zero point of one byte
    ],
)
def test_weights_take_a_quarter_of_the_bytes_and_their_scales(name: str, linear: int) -> None:
    prepared = layer_subject.prepare(catalogue.find(f"{LAYER}{name}"), WORKLOAD)
    assert prepared.facts()[layer_subject.WEIGHT_BYTES] == 4 * linear
