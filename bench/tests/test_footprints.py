"""Formulas of bytes against the allocator's own events: within 1 KiB and 1 %, most to the byte."""

import pytest
import torch

from attention_impls import catalogue
from bench.cell import parse_id
from bench.devices.cpu import DEVICE
from bench.step import make


def measured(subject, setting, direction):
    torch.set_num_threads(1)
    step = make(catalogue.find(subject), parse_id(f"{subject}/{setting}/{direction}/cpu1"), 1)
    with step.mode():
        return DEVICE.memory(step.phases())


def close(found, formula):
    return abs(found - formula) <= 1024 + formula / 100


SETTINGS = ("b1-h4-n256-d32-f32-full", "b2-h4-n192-d16-f32-full", "b1-h2-n130-d64-f32-full")
PEAKS = ("naive", "naive+query_chunks:64", "naive+head_chunks:1", "naive+head_chunks:2", "naive+key_chunks:64")
HELD = ("naive", "sdpa_flash", "naive+recompute", "tiles+recompute", "naive+query_chunks:64+recompute")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kernel", PEAKS)
def test_peaks_of_a_forward_are_their_formulas(kernel, setting):
    subject = f"softmax.{kernel}"
    formula = catalogue.find(subject).inner.footprint.peak(parse_id(f"{subject}/{setting}/fwd/cpu1").workload)
    assert close(measured(subject, setting, "fwd").peak_forward, formula)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kernel", HELD)
def test_what_is_held_for_the_backward_is_its_formula(kernel, setting):
    subject = f"softmax.{kernel}"
    formula = catalogue.find(subject).inner.footprint.held(parse_id(f"{subject}/{setting}/fwdbwd/cpu1").workload)
    assert close(measured(subject, setting, "fwdbwd").held, formula)


def test_a_transform_does_not_inherit_the_bytes_of_what_it_wraps():
    assert catalogue.find("softmax.naive+cast:bf16").inner.footprint.peak is None
    assert catalogue.find("softmax.naive+query_chunks:64").inner.footprint.held is None


LAYERS = ("multi_head", "encoder", "encoder:norm-post:layers-2", "encoder:activation-relu:ffn-2:layers-3")


@pytest.mark.parametrize("setting", ["b2-h4-n96-d16-f32-full", "b1-h2-n130-d32-f32-full", "b1-h8-n64-d8-f32-full"])
@pytest.mark.parametrize("kernel", ["naive", "sdpa_flash", "naive+recompute"])
@pytest.mark.parametrize("layer", LAYERS)
def test_what_a_layer_holds_is_its_formula(layer, kernel, setting):
    name = f"softmax.{kernel}+in:{layer}"
    subject, workload = catalogue.find(name), parse_id(f"{name}/{setting}/fwdbwd/cpu1").workload
    assert close(measured(name, setting, "fwdbwd").held, subject.layer.held(subject.inner, workload))
