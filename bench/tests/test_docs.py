"""What docs/ says in figures and tables is what the code does, and the bytes on paper are the bytes measured."""

import re
import tomllib
from dataclasses import fields

import pytest
import torch

from attention_impls import catalogue, judge
from bench import cli, costs, right, sanity, supervisor, timing
from bench.cell import parse_id
from bench.compare import NOISE_FLOOR
from bench.devices.cpu import DEVICE
from bench.protocol import Protocol
from bench.record import OUTCOMES
from bench.spec import from_data
from bench.step import make
from bench.tests.house import ROOT
from bench.tests.tables import tables

MEASURING = (ROOT / "docs" / "measuring.md").read_text("utf-8")
NUMERICS = (ROOT / "docs" / "numerics.md").read_text("utf-8")


def rows(text, first):
    """The rows of the table whose first column is called so, as a reader sees them."""
    return next(found[1:] for found in tables(text) if found[0][0] == first)


def test_the_table_of_metrics_is_what_the_command_prints(capsys):
    assert cli.run(["list", "metrics", "--markdown"]) == 0
    assert capsys.readouterr().out in MEASURING, "put what `attnbench list metrics --markdown` prints into measuring.md"


def test_every_outcome_has_its_meaning():
    assert sorted(row[0] for row in rows(MEASURING, "outcome")) == sorted(OUTCOMES)


def test_the_protocol_is_told_field_by_field_with_its_defaults():
    told = {name: (default, digest) for name, default, digest, _ in rows(MEASURING, "field")}
    defaults = {f.name: "pinned" if f.name == "heap" else str(f.default) or "empty" for f in fields(Protocol)}
    limits = {f.name for f in fields(Protocol) if f.metadata.get("limit")}
    assert told == {name: (default, "no" if name in limits else "yes") for name, default in defaults.items()}


def test_the_bytes_on_paper_are_the_bytes_measured():
    torch.set_num_threads(1)
    found = {}
    for subject in ("softmax.naive", "softmax.naive+recompute"):
        step = make(catalogue.find(subject), parse_id(f"{subject}/b1-h8-n1024-d64-f32-full/fwdbwd/cpu1"), 1)
        with step.mode():
            found[subject] = DEVICE.memory(step.phases())
    for subject, number, on_paper, told in rows(MEASURING, "contender"):
        counted = on_paper.replace(",", "").replace("·S", "*33554432").replace("·O", "*2097152")
        terms = [re.sub(r"^[SO]$", lambda m: {"S": "33554432", "O": "2097152"}[m[0]], t) for t in counted.split(" + ")]
        total = sum(int(a) * int(b or 1) for a, _, b in (term.partition("*") for term in terms))
        assert int(told.replace(",", "")) == total, f"{subject}, {number}: {on_paper} is {total:,}"
        assert getattr(found[subject], number.removesuffix("_for_backward")) == total


FIGURES = {  # a sentence's words -> the figure that the code has
    "measuring.md": {
        r"at most (\d+) query rows": Protocol().oracle_rows,
        r"(\d+) % of the free memory": 100 * supervisor.SPARE_MEMORY,
        r"taken to be (\d+) % until you know": 100 * NOISE_FLOOR,
        r"It must lie within ([\d.]+) of the claim": costs.BYTES_OFF,
        r"must be at most ([\d.]+) above the claim": costs.TIME_OVER,
    },
    "numerics.md": {
        r"never above (\d+) %": 100 * judge.CEILING,
        r"at most (\d+) times the definition's own": judge.FORWARD_FACTOR,
        r"\((\d+) times for gradients\)": judge.BACKWARD_FACTOR,
        r"worse than (\d+) roundings": judge.BLUNT_YARDSTICK,
        r"logits up to (\d+)": judge.LOGITS,
        r"(\d[\d.e-]*) in float64": judge.SAME_FUNCTION[torch.float64],
        r"(\d[\d.e-]*) in float32": judge.SAME_FUNCTION[torch.float32],
        r"([\d.e-]+) absolute": right.LSE_FLOOR,
        r"([\d.e-]+) relative over the whole": right.COARSE,
        r"(\d+) times that budget": right.FRESH_MARGIN,
    },
}


@pytest.mark.parametrize(
    ("document", "words", "figure"),
    [(document, words, figure) for document, known in FIGURES.items() for words, figure in known.items()],
)
def test_a_figure_in_a_sentence_is_the_code_s(document, words, figure):
    text = {"measuring.md": MEASURING, "numerics.md": NUMERICS}[document]
    said = re.findall(words, text)
    assert said and all(float(number) == figure for number in said), f"{document}: {words} should say {figure}"


def test_numbers_written_in_words_are_the_code_s():
    assert "more than a fifth" in MEASURING and sanity.FAULT_SHARE == 1 / 5
    assert "looked at every five rounds" in MEASURING and timing.CHECK_EVERY == 5
    assert "(five rounds are taken all the same)" in MEASURING and timing.SPARE_ROUNDS == 5
    assert "(three rounds)" in MEASURING and timing.SLOW_ROUNDS == 3


def test_the_gate_s_suite_is_a_suite():
    text = (ROOT / "docs" / "ci.md").read_text("utf-8")
    suite = from_data(tomllib.loads(re.search(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]), "gate")
    assert suite.name == "gate" and suite.budget_s and suite.reference and len(suite.sweeps) == 1


def test_every_link_from_one_document_to_another_leads_somewhere():
    documents = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for document in documents:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), f"{document.name} points to {target}, which is not there"
