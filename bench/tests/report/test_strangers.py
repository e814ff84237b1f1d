"""What text of a stored run may become."""

from __future__ import annotations

import pytest

from bench.report.strangers import clean, defuse, drawable, repeat_command


@pytest.mark.parametrize("formula", ["=cmd|' /C calc'!A0", "+1+1", "-2", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\n=1"])
def test_what_a_spreadsheet_takes_for_a_formula_begins_with_an_apostrophe(formula: str) -> None:
    assert defuse(formula) == "'" + formula


@pytest.mark.parametrize("value", [-2, -2.5e-7, 0, True, None, "softmax.naive", "1e-5", ""])
def test_numbers_and_plain_words_stay_as_they_are(value: object) -> None:
    assert defuse(value) == value  # type: ignore[arg-type]


def test_a_cell_is_no_longer_than_a_spreadsheet_holds() -> None:
    assert len(str(defuse("a" * 50_000))) < 32_767


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}[0m"),
        ("user\u202egnp.exe", "user\N{REPLACEMENT CHARACTER}gnp.exe"),
        ("a\x00b", "a\N{REPLACEMENT CHARACTER}b"),
        ("two\nlines", "two lines"),
        ("Ω · kᵀ", "Ω · kᵀ"),
    ],
)
def test_hidden_characters_become_visible(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_long_text_ends_with_an_ellipsis_at_the_limit() -> None:
    assert clean("x" * 10_000, 100) == "x" * 99 + "…"


def test_a_picture_gets_only_letters_that_its_font_has() -> None:
    assert drawable("fwd · h8 × µ") == "fwd · h8 × µ"
    assert drawable("注意\x1b") == "\\u6ce8\\u610f\\ufffd"
    assert len(drawable("注" * 500, 48)) <= 48


def test_the_command_of_a_row_names_its_cell() -> None:
    cell = "softmax.naive+recompute+query_chunks:128/b1-h8-n1024-d64-f32-causal+padded:0.5/fwd/cpu1"
    assert repeat_command(cell) == f"attnbench run --cell {cell}"


@pytest.mark.parametrize("cell", ["a;rm -rf ~", "$(id)", "a b", "`id`", "-x", "", "a\n", "a" * 500, "a'b", "A"])
def test_an_id_that_a_shell_would_read_has_no_command(cell: str) -> None:
    assert repeat_command(cell) is None
