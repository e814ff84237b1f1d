"""Expressions that choose cells."""

import pytest

from bench.errors import UserError
from bench.select import chooser

ID = "softmax.naive+query_chunks:128/b1-h8-n128-d64-f32-causal/fwd/cpu1"


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("naive", True),
        ("NAIVE", True),
        ("n128-", True),
        ("n12", True),
        ("n1280", False),
        ("not sdpa", True),
        ("naive and bf16", False),
        ("naive or bf16", True),
        ("bf16 or naive and fwdbwd", False),
        ("(bf16 or naive) and fwd/cpu1", True),
        ("not (bf16 or naive)", False),
        ("not not naive", True),
        ("query_chunks:128", True),
    ],
)
def test_words_and_or_not_and_brackets(expression, chosen):
    assert chooser(expression)(ID) is chosen


@pytest.mark.parametrize("expression", ["naive and", "(naive", "naive)", "and", "n=128", "a,b", "not"])
def test_what_cannot_be_read_is_refused(expression):
    with pytest.raises(UserError, match="-k"):
        chooser(expression)
