"""Encoder layers against torch's nn.TransformerEncoderLayer with the same weights: values, gradients, float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from attention_impls import catalogue, inputs, layer_subject
from attention_impls.contract import Workload
from attention_impls.layers.encoder import Block, Encoder

WORKLOAD = Workload(batch=2, heads=4, kv_heads=4, q_len=19, kv_len=19, head_dim=8, value_dim=8, dtype="f64")


def _copied(block: Block, norm: str, activation: str, ffn: int) -> nn.TransformerEncoderLayer:
    """torch's layer with the weights of ours."""
    width = 32
    theirs = nn.TransformerEncoderLayer(
        width, 4, ffn * width, 0.0, activation, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    parts = [block.attention.get_submodule(name) for name in ("q", "k", "v")]
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
    pairs = ((theirs.self_attn.out_proj, block.attention.get_submodule("o")), (theirs.linear1, block.up))
    for target, source in (
        *pairs,
        (theirs.linear2, block.down),
        (theirs.norm1, block.norm1),
        (theirs.norm2, block.norm2),
    ):
        target.load_state_dict(source.state_dict())
    return theirs


@pytest.mark.parametrize("mask", ["full", "causal", "padded:0.4"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_stack_is_torchs_own_layers_one_after_the_other(norm: str, activation: str, mask: str) -> None:
    workload = replace(WORKLOAD, mask=mask)
    name = f"softmax.naive+in:encoder:layers-2:norm-{norm}:ffn-3:activation-{activation}"
    prepared = layer_subject.prepare(catalogue.find(name), workload)
    encoder = prepared.module
    assert isinstance(encoder, Encoder)
    with torch.no_grad():
        for p in encoder.parameters():  # norms begin as the identity, which would hide one left out
            p.add_(0.1 * torch.rand(p.shape, dtype=p.dtype, generator=inputs.generator("norms")))
    theirs = [_copied(block, norm, activation, 3) for block in encoder.blocks]
    x = layer_subject.draw(workload).requires_grad_()
    visible = prepared.mask.visible()
    hidden = None if visible is None else ~visible.expand(2, 1, 19, 19)[:, 0].repeat_interleave(4, 0)
    expected = x
    for layer in theirs:
        expected = layer(expected, src_mask=hidden)
    out = prepared.run(x)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)
    upstream = inputs.draw_upstream(out)
    got, right = (torch.autograd.grad(y, x, upstream)[0] for y in (out, expected))
    torch.testing.assert_close(got, right, rtol=1e-11, atol=1e-11)


def test_every_block_has_weights_of_its_own() -> None:
    encoder = layer_subject.prepare(catalogue.find("softmax.naive+in:encoder:layers-3"), WORKLOAD).module
    first, second, third = (block.up.weight for block in encoder.get_submodule("blocks"))
    assert not torch.equal(first, second) and not torch.equal(second, third)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("norm-rms", "norm is pre or post"),
        ("activation-tanh", "activation gelu or relu"),
        ("layers-0", "1 or more"),
        ("ffn-0", "1 or more"),
    ],
)
def test_options_without_sense_are_refused(options: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        catalogue.find(f"softmax.naive+in:encoder:{options}")


def test_other_keys_than_its_own_tokens_are_refused() -> None:
    subject = catalogue.find("softmax.naive+in:encoder")
    assert "self-attention" in str(layer_subject.refuses(subject, replace(WORKLOAD, kv_len=30), "fwd", "cpu"))
