"""Every transform proves that it happened, also from inside a layer, where other modules stand around it."""

import pytest

from attention_impls import catalogue
from bench.cell import parse_id
from bench.measure import _proof
from bench.step import make, refuses

COMPILES = ("compiled",)
KERNEL = [
    (label, t.example) for label, t in catalogue.transforms().items() if t.acts_on == "kernel" and label not in COMPILES
]
LAYER = [(label, t.example) for label, t in catalogue.transforms().items() if t.acts_on == "layer"]


def proof(name, direction):
    subject = catalogue.find(name)
    if why := subject.missing():
        pytest.skip(why)
    cell = parse_id(f"{name}/b1-h4-n32-d16-f32-full/{direction}/cpu1")
    assert refuses(subject, cell) is None
    step = make(subject, cell, 1)
    return _proof(subject, cell, step, step.evidence())


def step_of(label, example):
    return label if example is None else f"{label}:{example}"


@pytest.mark.parametrize("layer", ["", "+in:multi_head", "+in:encoder:layers-2"])
@pytest.mark.parametrize(("label", "example"), KERNEL)
def test_a_transform_of_a_kernel_is_seen_wherever_the_kernel_stands(label, example, layer):
    outcome, note, facts = proof(f"softmax.naive+{step_of(label, example)}{layer}", "fwdbwd")
    assert not outcome, note
    assert facts[f"applied.{label}"]


@pytest.mark.parametrize("layer", ["multi_head", "encoder:layers-2"])
@pytest.mark.parametrize(("label", "example"), LAYER)
def test_a_transform_of_a_layer_is_seen(label, example, layer):
    direction = "fwd" if label.startswith("int8") else "fwdbwd"
    outcome, note, facts = proof(f"softmax.naive+in:{layer}+{step_of(label, example)}", direction)
    assert not outcome, note
    assert facts[f"applied.{label}"]
