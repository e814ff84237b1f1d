"""`attnbench show`: everything about one name, or the nearest name."""

import json

import pytest

from attention_impls import catalogue
from bench import cli, describe
from bench.models import models
from bench.spec import suite_names


def shown(capsys, name):
    assert cli.run(["show", name, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "kind", "fact", "value"),
    [
        ("softmax", "variant", "formula", "softmax(scale · q kᵀ)"),
        ("softmax.naive", "subject", "computes", "softmax, exact"),
        ("softmax.naive+query_chunks:128", "subject", "+query_chunks", ""),
        ("recompute", "transform", "aims at", "memory"),
        ("multi_head", "layer", "", ""),
        ("latency", "metric", "judged", "by statistics"),
        ("peak_forward", "metric", "judged", "exactly"),
        ("cpu", "device", "clocks", "wall"),
        ("llama3_8b", "model", "axes", "kv_heads 8"),
        ("quick", "suite", "reference", "softmax"),
    ],
)
def test_a_name_is_told_with_its_facts(capsys, name, kind, fact, value):
    (found,) = shown(capsys, name)
    assert (found["kind"], found["name"]) == (kind, name)
    assert found["text"] or kind == "subject"
    assert not fact or value in found["facts"][fact]
    assert found["examples"]


def test_everything_that_has_a_name_can_be_told(capsys):
    for name in describe.names():
        assert all(item.name == name and item.examples for item in describe.describe(name)), name


def test_every_command_that_is_offered_can_be_parsed():
    from bench.tests.readme import Typed, unknown_to_attnbench

    offered = {line for name in describe.names() for item in describe.describe(name) for line in item.examples}
    found = [told for line in offered for told in unknown_to_attnbench(Typed("show", tuple(line.split())))]
    assert found == []


def test_the_names_are_those_of_the_catalogue_the_suites_and_the_models():
    names = describe.names()
    assert names == sorted(set(names))
    assert {*catalogue.implementations(), *catalogue.entries(), *suite_names(), *models()} <= set(names)


def test_as_text_the_facts_stand_in_a_column(capsys):
    assert cli.run(["show", "llama3_8b"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("model llama3_8b\n")
    facts = [line for line in told.splitlines() if line.startswith("  ") and "attnbench" not in line]
    assert len({len(line) - len(line[2:].partition("  ")[2].lstrip()) for line in facts}) == 1
    assert "arXiv 2407.21783" in told and "try:" in told


def test_a_parameter_is_told_with_its_axes(capsys):
    name, variant = next(
        (name, made[0].variant)
        for name, entry in catalogue.entries().items()
        if (made := list(entry.make())) and made[0].variant.parameters
    )
    facts = shown(capsys, name)[0]["facts"]
    for parameter, given in variant.parameters.items():
        assert given.role in facts[f"parameter {parameter}"]


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("softmx", "'softmax'"),
        ("softmax.naiv", "'naive'"),
        ("softmax.naive+recompte", "'recompute'"),
        ("latencyy", "'latency'"),
    ],
)
def test_a_misspelt_name_gets_the_nearest(capsys, word, near):
    assert cli.run(["show", word]) == 2
    assert f"did you mean {near}" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["softmax.naive+query_chunks:0", "softmax.naive+recompute:3", "softmax.", "++", "Ä.ö"])
def test_a_name_that_makes_no_sense_is_a_sentence(capsys, word):
    assert cli.run(["show", word]) == 2
    assert "Traceback" not in capsys.readouterr().err
