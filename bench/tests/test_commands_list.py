"""`attnbench list`: every noun, as a table and as data, with what is absent and the command that helps."""

import json
from dataclasses import replace

import pytest

from attention_impls import catalogue
from attention_impls.needs import Need
from bench import cli, inventory
from bench.commands.list import WHAT
from bench.metric import all_metrics
from bench.tests.house import ROOT


def listed(capsys, what):
    assert cli.run(["list", what, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("what", WHAT)
def test_each_noun_is_listed_as_a_table_and_as_data(capsys, what):
    rows = listed(capsys, what)
    assert rows and all(isinstance(value, str) for row in rows for value in row.values())
    assert cli.run(["list", what]) == 0
    table = capsys.readouterr().out
    first = next(iter(rows[0].values()))
    assert first in table
    assert len(table.splitlines()) > len(rows)


def test_variants_are_listed_by_default(capsys):
    assert cli.run(["list"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["family", "variant"]


def test_what_is_listed_is_what_lies_in_the_folders(capsys):
    files = {path.stem for path in (ROOT / "bench" / "commands").glob("*.py")} - {"__init__"}
    assert {row["command"] for row in listed(capsys, "commands")} == files
    suites = {path.stem for path in (ROOT / "bench" / "suites").glob("*.toml")}
    assert {row["suite"] for row in listed(capsys, "suites")} == suites
    assert {row["metric"] for row in listed(capsys, "metrics")} == set(all_metrics())
    assert {row["implementation"] for row in listed(capsys, "implementations")} == set(catalogue.implementations())


def test_variants_stand_by_family_and_say_whether_they_are_exact(capsys):
    rows = listed(capsys, "variants")
    families = [row["family"] for row in rows]
    assert families == sorted(families)
    softmax = next(row for row in rows if row["variant"] == "softmax")
    assert softmax["family"] == "scores" and softmax["computes"] == "exact"
    assert "naive" in softmax["implementations"].split(", ")


def test_an_approximation_names_what_it_approximates():
    variant = catalogue.find("softmax.naive").variant
    assert inventory.exactness(replace(variant, approximates="softmax")) == "approximates softmax"


def test_what_is_absent_is_listed_with_the_command_that_helps(capsys, monkeypatch):
    entry = catalogue.entries()["softmax"]
    nowhere = Need("the package nowhere", lambda: False, "pip install nowhere")

    def make(**options):
        first, second, *others = entry.make(**options)
        missing = [replace(i, support=replace(i.support, needs=(nowhere,))) for i in (first, second)]
        return [*missing, *others]

    monkeypatch.setattr(catalogue, "entries", lambda: {"softmax": replace(entry, make=make)})
    row = listed(capsys, "variants")[0]
    names = [i.name for i in make()]
    assert row["implementations"].split(", ") == names[2:]
    assert cli.run(["list", "variants"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("absent here")]
    sentence = "needs the package nowhere, not found here; try: pip install nowhere"
    assert told == [f"absent here: softmax.{name}: {sentence}" for name in names[:2]]


def test_a_misspelt_noun_gets_the_nearest(capsys):
    assert cli.run(["list", "metric"]) == 2
    assert "did you mean 'metrics'" in capsys.readouterr().err


def test_a_sentence_ends_at_its_first_full_stop():
    assert inventory.first_sentence("Keeps 2.5 times\n  less. And more.") == "Keeps 2.5 times less"
