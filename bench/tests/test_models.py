"""Shapes of well-known models: real axes, real shapes, and a source for each."""

import re

import pytest

from attention_impls.contract import Workload
from attention_impls.inputs import build_mask
from bench.errors import UserError
from bench.models import model, models
from bench.spec import AXES, axes_of


def _workload(name):
    axes = {axis: values[0] for axis, values in axes_of(models()[name].axes).items()}
    for axis, other in (("kv_heads", "heads"), ("kv_len", "q_len"), ("value_dim", "head_dim")):
        axes[axis] = axes[other] if axes[axis] is None else axes[axis]
    return Workload(**{axis: axes[axis] for axis in Workload.__dataclass_fields__})


def test_there_are_a_dozen_models_at_least():
    assert len(models()) >= 12


@pytest.mark.parametrize("name", list(models()))
def test_a_models_axes_are_those_of_suites_and_make_a_workload(name):
    assert set(models()[name].axes) <= set(AXES)
    workload = _workload(name)
    build_mask(workload, "meta")


@pytest.mark.parametrize("name", list(models()))
def test_a_model_says_where_its_shape_is_written(name):
    found = models()[name]
    assert found.title and found.note
    assert re.search(r"arXiv \d{4}\.\d{5}|config\.json", found.source)


# Width of the query projection, heads · head size, as each paper's own table or text has it.
WIDTHS = {
    "gpt2": 768,
    "gpt3_175b": 12288,
    "bert_base": 768,
    "vit_base_16": 768,
    "whisper_large": 1280,
    "stable_diffusion_1": 320,
    "falcon_7b": 4544,
    "llama2_7b": 4096,
    "llama3_8b": 4096,
    "llama3_70b": 8192,
    "mistral_7b": 4096,
    "gemma_2b": 2048,
    "qwen2_7b": 3584,
}


@pytest.mark.parametrize(("name", "width"), WIDTHS.items())
def test_heads_times_head_size_is_the_models_width(name, width):
    workload = _workload(name)
    assert workload.heads * workload.head_dim == width


def test_a_vision_transformer_sees_its_patches_and_a_class_token():
    assert _workload("vit_base_16").q_len == (224 // 16) ** 2 + 1


def test_latent_attention_has_a_rotary_part_in_its_keys_only():
    workload = _workload("deepseek_v2")
    assert (workload.head_dim, workload.value_dim) == (128 + 64, 128)


def test_a_misspelt_model_is_told_the_nearest():
    with pytest.raises(UserError, match="did you mean 'llama3_8b'"):
        model("llama3-8b")
