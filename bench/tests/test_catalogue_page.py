"""The catalogue's page: as committed, escaped so that a reader of Markdown sees what was meant, and true."""

import pytest

from attention_impls import catalogue
from attention_impls.contract import Implementation, Output, Support
from attention_impls.variants.scores.softmax import SOFTMAX
from bench import catalogue_page, cli, inventory, markdown
from bench.costs import Cost
from bench.metric import all_metrics
from bench.spec import AXES
from bench.tests.house import ROOT
from bench.tests.tables import tables


@pytest.fixture
def own_entries(monkeypatch):
    """Nothing but what lies in this tree: no plugin that is installed or was loaded by another test."""
    monkeypatch.setattr(catalogue, "_installed_plugins", list)
    monkeypatch.setattr(catalogue, "_loaded", {})
    catalogue.entries.cache_clear()
    yield
    monkeypatch.undo()
    catalogue.entries.cache_clear()


def test_the_committed_page_is_what_the_code_generates(own_entries, capsys):
    assert cli.run(["list", "variants", "--markdown"]) == 0
    committed = (ROOT / "docs" / "catalogue.md").read_text("utf-8")
    assert capsys.readouterr().out == committed, f"the code has changed; type: {catalogue_page.COMMAND}"


def test_every_row_of_the_page_has_a_cell_for_each_column_and_every_entrant_a_row(own_entries):
    found = tables(catalogue_page.page())
    assert all(len(row) == len(table[0]) for table in found for row in table)
    first = [row[0] for table in found for row in table[1:]]
    assert set(first) >= {*catalogue.entries(), *catalogue.implementations()}
    assert len(first) == len(set(first))


def test_what_stands_under_another_noun_is_really_there(own_entries):
    known = {
        "variant": set(catalogue.entries()),
        "implementation": set(catalogue.implementations()),
        "transform": set(catalogue.transforms()),
        "layer": set(catalogue.layers()),
        "metric": set(all_metrics()),
        "axis": set(AXES),
    }
    for row in catalogue_page.elsewhere():
        assert set(row) == {"name", "is", "why"}
        noun, _, thing = row["is"].partition(" ")
        assert row["is"] == "not here" or thing in known[noun], row
        assert len(row["why"].split()) > 2


@pytest.mark.parametrize("text", ["|i - j| < w", "a*b*c, x_1 _y_", "[x](y) `z` \\|", "<b>", "P`Q"])
def test_a_cell_reads_as_it_was_written(text):
    shown = tables(markdown.table(["a", "b"], [[markdown.escape(text), markdown.code(text.replace("\\", ""))]]))
    assert shown[0][1] == [text, text.replace("\\", "")]


def test_a_line_break_does_not_end_a_row():
    assert tables(markdown.table(["a"], [[markdown.escape("two\nlines")]]))[0][1] == ["two lines"]


def test_what_a_mechanism_is_defined_for_is_what_its_paper_says():
    words = {name: catalogue_page.defined(catalogue.find(name).variant) for name in (
        "softmax.naive", "linformer.naive", "gated_delta.recurrent", "reformer_lsh.dense")}  # fmt: skip
    assert words["softmax.naive"] == list(catalogue_page.MASKS)
    assert "causal" not in words["linformer.naive"]  # its keys are mixtures of all positions
    assert "no mask" not in words["gated_delta.recurrent"] and "causal" in words["gated_delta.recurrent"]
    assert "cross lengths" not in words["reformer_lsh.dense"]  # queries are the keys


def _made(**support):
    return Implementation("mine", SOFTMAX, lambda call, lse: lambda call: Output(call.q), Support(**support))


def test_what_is_refused_is_what_support_leaves_out():
    assert catalogue_page.refused(_made(), "cpu") == []
    narrow = _made(grouped_heads=False, cross=False, value_dim=False, backward=False, dtypes=frozenset({"f32"}))
    assert catalogue_page.refused(narrow, "cpu") == [
        "cross lengths", "decoding", "grouped heads", "value size ≠ head size", "f64", "f16", "bf16", "backward",
    ]  # fmt: skip
    causal = _made(masks=frozenset({"causal"}), starts=frozenset({"zero"}))
    assert catalogue_page.refused(causal, "cpu") == ["no mask", "padding", "packed documents", "dense", "decoding"]
    assert catalogue_page.refused(_made(devices=frozenset({"cuda"})), "cpu") == ["everything"]


def test_what_a_mechanism_is_not_defined_for_is_not_held_against_its_implementations():
    assert catalogue_page.refused(catalogue.find("linformer.naive").bare, "cpu") == []
    assert catalogue_page.refused(catalogue.find("reformer_lsh.sorted").bare, "cpu") == []


def test_devices_that_differ_are_told_apart():
    made = _made(why_not=lambda call: "half only" if call.where == "cuda" and call.q.dtype.itemsize > 2 else None)
    assert catalogue_page._told(made) == "cuda: f64, f32"


def _told_of(name, columns, kept):
    found = catalogue.find(name)
    row = catalogue_page._implementation(str(found.variant.name), found.bare, kept)
    return [dict(zip(catalogue_page.IMPLEMENTATION_COLUMNS, row, strict=True))[column] for column in columns]


def test_claim_and_fit_stand_side_by_side_with_the_lengths():
    n = (128, 256, 512)
    measured = Cost("b1", n, tuple(256 * x for x in n), tuple(1e-9 * x**2 for x in n), "", 1.0, 2**20, "2", "here")
    columns = ("time", "bytes", "n")
    assert _told_of("softmax.tiles", columns, {"softmax.tiles": measured}) == ["≤ 2: 2", "1: 1", "128–512"]
    assert _told_of("softmax.naive", columns, {}) == ["≤ 2", "≤ 2", "not measured"]
    assert _told_of("sliding_window.banded", ("time",), {}) == ["≤ 1 (window and block fixed)"]


@pytest.mark.parametrize(
    ("name", "oracle", "weights"),
    [("gla", "onnxruntime (1), onnx reference (2), fla (3)", "yes"), ("fnet", "numpy (2)", "no")],
)
def test_oracles_and_weights_stand_with_every_variant(name, oracle, weights):
    entry = catalogue.entries()[name]
    row = catalogue_page._variant(name, next(iter(entry.make())).variant, entry)
    told = dict(zip(catalogue_page.VARIANT_COLUMNS, row, strict=True))
    assert (told["oracle"], told["weights"]) == (oracle, weights)


def test_other_nouns_are_listed_as_tables(capsys):
    assert cli.run(["list", "metrics", "--markdown"]) == 0
    table = tables(capsys.readouterr().out)[0]
    assert [dict(zip(table[0], row, strict=True)) for row in table[1:]] == inventory.metrics()


def test_one_answer_at_a_time(capsys):
    assert cli.run(["list", "--json", "--markdown"]) == 2
    assert "one of them" in capsys.readouterr().err
