"""Random sparse attention: what is drawn, and that each query reads its own keys alone."""

from __future__ import annotations

import pytest
import torch

from attention_impls import catalogue
from attention_impls.tests.static_patterns import CALLS, by_loop, close, pairs
from attention_impls.tests.variant_steps import changes_nothing_before, definition, drawn, run, with_parameters
from attention_impls.variants.scores.softmax import SOFTMAX

NAME = "random:keys-4"
VARIANT = catalogue.find(f"{NAME}.naive").variant
FORMS = ("naive", "sdpa_flash", "gathered", "gathered:block-2")


@pytest.mark.parametrize("axes", CALLS)
def test_definition_and_every_form_agree_with_a_loop_over_elements(axes: dict) -> None:
    call = drawn(VARIANT, **axes)
    columns = call.parameters["columns"].tolist()
    right = by_loop(call, lambda h, i, j: i == j or any(drawn_[i] == j for drawn_ in columns))
    close(definition(VARIANT, call), right)
    for form in FORMS:
        close(run(f"{NAME}.{form}", call), right)


def test_every_query_sees_as_many_keys_as_asked_its_own_among_them() -> None:
    call = drawn(VARIANT, q_len=50, kv_len=50, mask="full")
    seen = VARIANT.weights(call, torch.arange(50))[0, 0] > 0
    assert seen.sum(1).tolist() == [4] * 50 and seen.diagonal().all()
    assert pairs(VARIANT, call) == 200


def test_all_other_keys_are_drawn_about_equally_often() -> None:
    """1000 positions draw 3 of 999: each is wanted 3 times on average, with a standard deviation of 1.73."""
    columns = drawn(VARIANT, q_len=1000, kv_len=1000).parameters["columns"]
    counts = torch.bincount(columns.flatten(), minlength=1000).double()
    assert float(counts.var(correction=0)) == pytest.approx(3.0, rel=0.2)
    for part in counts.split(250):
        assert float(part.mean()) == pytest.approx(3.0, abs=5 * (3.0 / 250) ** 0.5)


@pytest.mark.parametrize("form", FORMS)
def test_a_key_drawn_twice_or_that_is_the_own_counts_once(form: str) -> None:
    call = drawn(VARIANT, mask="full")
    columns = torch.tensor([[2] * 7, [2] * 7, [0, 4, 4, 3, 4, 4, 4]])
    out = run(f"{NAME}.{form}", with_parameters(call, columns=columns))
    right = by_loop(call, lambda h, i, j: j in (2, i) or (j == 4 and i not in (0, 3)))
    close(out, right)


@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("keys", [7, 50])
def test_as_many_keys_as_there_are_is_softmax(form: str, keys: int) -> None:
    name = f"random:keys-{keys}.{form}"
    close(run(name, drawn(catalogue.find(name).variant)), definition(SOFTMAX, drawn(SOFTMAX)).numpy())


@pytest.mark.parametrize("form", FORMS)
def test_a_part_keeps_its_draws(form: str) -> None:
    call = drawn(VARIANT, q_len=17, kv_len=17, mask="full")
    part = call.rows(8, 13).keys(3, 17)
    columns = call.parameters["columns"].tolist()
    right = by_loop(part, lambda h, i, j: i == j or any(drawn_[i] == j for drawn_ in columns))
    close(run(f"{NAME}.{form}", part), right)


@pytest.mark.parametrize("form", FORMS)
def test_later_tokens_change_nothing_before(form: str) -> None:
    changes_nothing_before(f"{NAME}.{form}", drawn(VARIANT), 4)


def test_fewer_keys_than_one_are_an_error() -> None:
    with pytest.raises(ValueError, match="keys must be at least 1"):
        catalogue.find("random:keys-0.gathered")
