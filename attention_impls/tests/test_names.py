"""The grammar of names: what is printed is what was parsed, and near misses say which part is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_impls.names import BadNameError, Step, SubjectName, parse

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
VALUES = st.from_regex(r"-?[a-z0-9_.]{1,6}", fullmatch=True)
# A variant's last option is followed by ".implementation": its value may not hold a dot before a letter.
VARIANT_VALUES = VALUES.filter(lambda value: not any(c.isalpha() for c in value) or "." not in value)
OPTIONS = st.lists(st.tuples(NAMES, VALUES), max_size=2).map(tuple)
STEPS = st.lists(st.builds(Step, NAMES.filter(lambda n: n != "in"), st.none() | VALUES), max_size=3).map(tuple)
SUBJECTS = st.builds(
    SubjectName,
    variant=NAMES,
    implementation=NAMES,
    variant_options=st.lists(st.tuples(NAMES, VARIANT_VALUES), max_size=2).map(tuple),
    implementation_options=OPTIONS,
    transforms=STEPS,
    layer=st.none(),
)
LAYERED = st.builds(
    lambda bare, layer, options, steps: SubjectName(
        bare.variant,
        bare.implementation,
        bare.variant_options,
        bare.implementation_options,
        bare.transforms,
        layer,
        options,
        steps,
    ),
    SUBJECTS,
    NAMES,
    OPTIONS,
    STEPS,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SUBJECTS | LAYERED)
def test_a_printed_name_parses_to_itself(name: SubjectName) -> None:
    assert parse(str(name)) == name


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text("ab1_.:+-in", max_size=24))
def test_whatever_parses_prints_itself_again(text: str) -> None:
    try:
        name = parse(text)
    except BadNameError:
        return
    assert str(name) == text


def test_every_part_of_a_whole_name_is_found() -> None:
    name = parse("a:w-2.5:m--1.b:block-64+recompute+query_chunks:128+in:multi_head:bias-0+int8_dynamic")
    assert name == SubjectName(
        variant="a",
        implementation="b",
        variant_options=(("w", "2.5"), ("m", "-1")),
        implementation_options=(("block", "64"),),
        transforms=(Step("recompute"), Step("query_chunks", "128")),
        layer="multi_head",
        layer_options=(("bias", "0"),),
        layer_transforms=(Step("int8_dynamic"),),
    )
    assert name.kernel == "a:w-2.5:m--1.b:block-64+recompute+query_chunks:128"


@pytest.mark.parametrize(
    "text",
    [
        "softmax.naive+recompute+query_chunks:128",
        "sliding_window:window-256.banded+compiled",
        "softmax.sdpa_flash+in:multi_head+int8_dynamic",
        "softmax.sdpa_cudnn",
    ],
)
def test_the_examples_of_the_grammar_parse_and_print(text: str) -> None:
    assert str(parse(text)) == text


def test_an_implementation_begins_after_a_dot_that_a_letter_follows() -> None:
    name = parse("temperature:tau-0.5.naive")
    assert (name.variant_options, name.implementation) == ((("tau", "0.5"),), "naive")


def test_the_order_of_transforms_is_kept() -> None:
    assert parse("a.b+x+y") != parse("a.b+y+x")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("softmax", "names no implementation"),
        ("", "names no implementation"),
        ("softmax.", "names no implementation"),
        ("softmax.1naive", "names no implementation"),
        ("Softmax.naive", "'Softmax' is no name"),
        ("softmax.naive+Recompute", "'Recompute' is no transform"),
        ("softmax.naive+", "'' is no transform"),
        ("softmax.naive+query_chunks:", "'query_chunks:' is no transform"),
        ("softmax.naive+query_chunks=8", "'query_chunks=8' is no transform"),
        ("softmax.naive+a+in:", "'' is no name"),
        ("a:window.naive", "'window' is no option"),
        ("a:window=3.naive", "'window=3' is no option"),
        ("a.b:block-", "'block-' is no option"),
        ("a.b@layer", "is no name"),
        ("a.b\n", "is no name"),
        ("a.b c", "is no name"),
    ],
)
def test_a_near_miss_says_which_part_does_not_fit(text: str, part: str) -> None:
    with pytest.raises(BadNameError, match=part.replace("(", r"\(")):
        parse(text)


def test_a_layer_around_a_layer_is_no_name():
    with pytest.raises(BadNameError, match="two layers"):
        parse("softmax.naive+in:multi_head+in:single_head")
