"""Decoding from a cache is an opt-in metric of its own."""

from dataclasses import replace

import torch

from attention_impls import catalogue
from bench.cell import parse_id
from bench.metric import Asked
from bench.metrics import decode
from bench.protocol import Protocol


def readings(text):
    torch.set_num_threads(1)
    asked = Asked(parse_id(text), Protocol())
    return [metric.ask(asked).reading for metric in decode.METRICS]


def test_a_recurrent_form_digests_the_past_once_and_steps_in_constant_time():
    short = readings("gated_delta.recurrent/b1-h2-n64-d16-f32-causal/fwd/cpu1")
    long = readings("gated_delta.recurrent/b1-h2-n1024-d16-f32-causal/fwd/cpu1")
    assert all(len(reading.values) == decode.BLOCKS for reading in (*short, *long))
    assert min(long[0].values) > 4 * min(short[0].values), "digesting grows with the past"
    assert min(long[1].values) < 4 * min(short[1].values), "a step does not"


def test_what_has_no_cache_or_no_last_token_says_so():
    assert "no cache" in readings("softmax.naive/b1-h2-n16-d16-f32-causal/fwd/cpu1")[0].why_missing
    assert "causal" in readings("gated_delta.recurrent/b1-h2-n16-d16-f32-causal/fwdbwd/cpu1")[0].why_missing


def test_a_wrong_token_has_no_speed(monkeypatch):
    right = catalogue.find("gated_delta.recurrent")
    forgets = replace(right.inner, prefill=lambda call: torch.zeros_like(right.inner.prefill(call)))
    monkeypatch.setattr(decode.catalogue, "find", lambda name: replace(right, inner=forgets))
    found = readings("gated_delta.recurrent/b1-h2-n64-d16-f32-causal/fwd/cpu1")
    assert all("wrong answer" in reading.why_missing for reading in found)
