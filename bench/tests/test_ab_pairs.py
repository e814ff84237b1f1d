"""Live pairs of workers: who is measured, in what order, and what a worker's death costs."""

import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from attention_impls import catalogue
from bench.ab.live import Died, Live
from bench.ab.pairs import BASE, HEAD, Driver
from bench.ab.sides import SOURCE, Side, checked_out, contract_version, elsewhere, here, resolve
from bench.cell import parse_id, to_data
from bench.child import Place
from bench.errors import CannotDo, UserError
from bench.protocol import Protocol

HOSTILE = Path(__file__).parent / "data" / "hostile.py"
QUICK = Protocol(warm_s=0.005, step_timeout_s=20.0, first_call_timeout_s=20.0)
NAIVE = parse_id("softmax.naive/b1-h2-n32-d16-f32-full/fwd/cpu1")


@pytest.fixture(autouse=True)
def _hostile_kernels():
    catalogue.load_plugin(HOSTILE)
    yield
    catalogue._loaded.clear()
    catalogue.entries.cache_clear()


def pair(*subjects, base=None, head=None, rounds=3):
    cells = {i: replace(NAIVE, subject=f"softmax.{name}") for i, name in enumerate(subjects)}
    driver = Driver(base or here("base"), head or here("head"), cells, QUICK, (str(HOSTILE),))
    return driver.pair(0, list(cells), rounds, lambda _: None)


def test_both_sides_take_every_round_with_the_same_calls_a_block_and_in_either_order():
    before = os.sched_getaffinity(0)
    found = pair("naive", "sdpa_flash", rounds=12)
    assert found.failed == {}
    assert {cell: len(blocks) for cell, blocks in found.blocks.items()} == {0: 12, 1: 12}
    firsts = {block.head_first for blocks in found.blocks.values() for block in blocks}
    assert firsts == {True, False}
    assert all(block.base > 0 and block.head > 0 for blocks in found.blocks.values() for block in blocks)
    assert os.sched_getaffinity(0) == before


def test_another_subject_on_one_side_is_what_that_side_measures():
    """The naive form against one of the same cell that computes everything forty times over."""
    slow = Path(__file__).parent / "data" / "forty_times.py"
    cells = {0: replace(NAIVE, workload=replace(NAIVE.workload, q_len=128, kv_len=128))}
    head = here("head", "softmax.forty_times")
    found = Driver(here("base"), head, cells, QUICK, (str(slow),)).pair(0, [0], 5, lambda _: None)
    assert all(block.head > 5 * block.base for block in found.blocks[0])


def test_a_kernel_that_dies_costs_its_own_cell_only():
    found = pair("naive", "null_read", "raises", "late_null_read", head=here("head"))
    assert set(found.blocks) == {0}
    assert len(found.blocks[0]) == 3
    assert {cell for _, cell in found.failed} == {1, 2, 3}
    assert found.failed[(BASE, 1)][0] == "crashed"
    assert "SIGSEGV" in found.failed[(BASE, 1)][1]
    assert found.failed[(BASE, 2)][0] == "raised"


def test_a_kernel_that_hangs_is_ended_by_its_deadline():
    driver = Driver(here("base"), here("head"), {0: replace(NAIVE, subject="softmax.spins")},
                    replace(QUICK, first_call_timeout_s=6.0), (str(HOSTILE),))  # fmt: skip
    found = driver.pair(0, [0], 2, lambda _: None)
    assert found.failed[(BASE, 0)][0] == "timeout"
    assert (HEAD, 0) not in found.failed


def test_a_worker_that_is_killed_between_commands_is_told_with_the_cell_it_was_at():
    job = {"protocol": asdict(QUICK), "plugins": [], "cells": [(7, to_data(NAIVE))]}
    with Live(HEAD, here("head"), job, {}, 20.0) as live:
        live.wait_ready()
        live.ask("prepare", cells=[7])
        live._child.process.kill()
        with pytest.raises(Died) as died:
            live.ask("block", cell=7, round=0)
    assert (died.value.at, died.value.cell, died.value.death.outcome) == (HEAD, 7, "killed")


def test_a_worker_that_imported_other_kernels_measures_nothing(tmp_path):
    shadowed = Side("base", here().place, tmp_path / "attention_impls")
    with pytest.raises(CannotDo, match=r"base: its worker imported .*attention_impls, not"):
        pair("naive", base=shadowed)


def test_a_python_that_cannot_start_the_worker_is_told():
    broken = Side("base", Place(python="/bin/false", root=str(SOURCE)), None)
    with pytest.raises(CannotDo, match="base: the worker did not start: left with exit code 1"):
        pair("naive", base=broken)
    with pytest.raises(UserError, match="no Python at /nowhere"):
        elsewhere("base", "/nowhere")


def test_the_contracts_version_is_read_off_the_text(tmp_path):
    assert contract_version(SOURCE / "attention_impls") == QUICK.contract
    assert contract_version(tmp_path) is None
    (tmp_path / "contract.py").write_text("# CONTRACT_VERSION = 1\nCONTRACT_VERSION = 27  # later\n", "utf-8")
    assert contract_version(tmp_path) == 27


@pytest.mark.parametrize("name", ["no-such-branch", "--upload-pack=x", ""])
def test_a_revision_nobody_knows_is_the_users_mistake(name):
    with pytest.raises(UserError, match=r"no commit|no revision"):
        resolve(name)


def test_without_git_no_commit_can_be_compared(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotDo, match="git is not installed"), checked_out("HEAD"):
        pass
