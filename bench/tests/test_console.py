"""What reaches a terminal: plain where nobody looks, live where somebody does, never a stranger's control codes."""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from bench import console


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def looking_at(terminal: Terminal) -> Iterator[None]:
    """Within a test's body: pytest sets the streams anew after fixtures."""
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
        yield


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    seen = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return seen


def test_answers_go_to_standard_output_and_the_rest_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    console.out("answer")
    console.err("note")
    assert capsys.readouterr() == ("answer\n", "note\n")


def test_a_plain_table_aligns_numbers_at_their_end_and_texts_at_their_beginning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.table(["cell", "time"], [["a", "12.3 ms"], ["bcdef", "–"], ["c", "4 µs"]])
    assert capsys.readouterr().out == "cell      time\na      12.3 ms\nbcdef        –\nc         4 µs\n"


def test_a_table_without_rows_is_its_heads(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(["cell", "time"], [])
    assert capsys.readouterr().out == "cell  time\n"


def test_a_cell_with_newlines_stays_in_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(["why"], [["two\nlines"]])
    assert capsys.readouterr().out == "why\ntwo lines\n"


@pytest.mark.parametrize("text", ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\b", "\u202e", "\ud800", "\x00"])
def test_a_strangers_control_characters_never_arrive(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    console.out(f"a{text}b")
    console.table([f"x{text}"], [[text]])
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\x9b\x07\r\b\x00\u202e\ud800")
    assert shown.startswith("a\N{REPLACEMENT CHARACTER}")


def test_a_terminal_gets_no_strangers_control_characters_nor_markup(terminal: Terminal) -> None:
    with looking_at(terminal):
        console.table(["[bold]x"], [["\x1b]0;title\x07[red]y[/red]"]])
    assert "[bold]x" in terminal.getvalue()
    assert "[red]y[/red]" in terminal.getvalue()
    assert "\x1b]0" not in terminal.getvalue()


def test_a_terminal_gets_a_drawn_table_and_one_that_wants_no_colour_a_plain_one(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with looking_at(terminal):
        console.table(["cell"], [["a"]])
    assert "\x1b[1m" in terminal.getvalue()
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch, looking_at(terminal):
            patch.setenv(name, value)
            terminal.seek(0)
            terminal.truncate()
            console.table(["cell"], [["a"]])
            console.progress().start(3)
            assert terminal.getvalue() == "cell\na\n3 to do\n"


def test_a_terminal_that_cannot_say_a_letter_gets_its_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    console.out("4 µs")
    sys.stdout.flush()
    assert raw.getvalue() == b"4 \\xb5s\n"


def test_data_is_strict_json(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(name)

    console.json_out({"a": math.nan, "b": [math.inf, 1.5], "c": (None, "µ")})
    seen = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert seen == {"a": "nan", "b": ["inf", 1.5], "c": [None, "µ"]}


def test_progress_is_plain_lines_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    told = console.progress()
    told.start(3)
    told.advance("softmax.naive", 1, 3, 125.4)
    told.advance("softmax.tiled", 2, 3, 9.0)
    told.advance("last", 3, 3, None)
    told.note("two\x1b[31m runs at once")
    told.stop()
    assert capsys.readouterr() == (
        "",
        "3 to do\n[1/3] softmax.naive, 2 min 05 s left\n[2/3] softmax.tiled, 9 s left\n[3/3] last\n"
        "two\N{REPLACEMENT CHARACTER}[31m runs at once\n",
    )


def test_progress_is_a_live_line_on_a_terminal_and_is_gone_at_the_end(terminal: Terminal) -> None:
    with looking_at(terminal):
        told = console.progress()
        told.note("before")
        told.advance("early", 0, 2, None)
        told.start(2)
        told.advance("[red]softmax.naive", 1, 2, 61.0)
        told.note("a [note] of its own")
        told.stop()
        told.stop()
    shown = terminal.getvalue()
    assert "before\n" in shown
    assert "[red]softmax.naive, 1 min 01 s left" in shown
    assert "1/2" in shown
    assert "a [note] of its own" in shown
    assert shown.rstrip().endswith("\x1b[2K")
